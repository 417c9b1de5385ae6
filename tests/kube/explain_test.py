#!/usr/bin/env python3
"""`sluice explain` against a real control plane: waiting, bound and unknown pods, text and JSON, asked directly and through
the API server's service proxy."""

import json
import os
import subprocess
import sys
import time

from sluice_cluster import GPU_COUNT, SluiceCluster, wait_until

SLUICE = os.path.join(os.environ["SLUICE_BUILD"], "bin", "sluice")


def explain(*arguments):
    return subprocess.run([SLUICE, "explain", *arguments], capture_output=True, text=True, timeout=60)


def doctor(cluster, *arguments):
    """The links by name, and the exit status."""
    said = subprocess.run([SLUICE, "doctor", "--json", "--kubeconfig", cluster.kubeconfig, *arguments], capture_output=True,
                          text=True, timeout=120)
    assert said.returncode in (0, 1) and not said.stderr, said.stderr
    return {link["link"]: link for link in json.loads(said.stdout)}, said.returncode


def add_service(cluster):
    """The Service that deploy/manifests has, with a pod that stands for this machine's scheduler. False where the machine
    has no address but loopback, to which the API server sends nothing."""
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    addresses = [address for address in addresses if ":" not in address]
    if not addresses:
        return False
    path = "/api/v1/namespaces/sluice-system"
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "sluice-system"}})
    wait_until(lambda: cluster.kubectl("-n", "sluice-system", "get", "serviceaccount", "default").returncode == 0, 20,
               "the service account")
    cluster.api.post(f"{path}/pods", {"metadata": {"name": "scheduler"}, "spec": {
        "nodeName": "a", "containers": [{"name": "c", "image": "none"}]}})
    cluster.api.patch(f"{path}/pods/scheduler/status", {"status": {
        "phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": addresses[0]}]}}, "strategic-merge-patch")
    cluster.api.post(f"{path}/services", {"metadata": {"name": "sluice-scheduler"},
                                          "spec": {"ports": [{"name": "https", "port": 443}]}})
    target = {"kind": "Pod", "namespace": "sluice-system", "name": "scheduler"}
    cluster.api.post(f"{path}/endpoints", {"metadata": {"name": "sluice-scheduler"}, "subsets": [{
        "addresses": [{"ip": addresses[0], "targetRef": target}], "ports": [{"name": "https", "port": cluster.port}]}]})
    return True


def main():
    with SluiceCluster(tls=True, scheduler_arguments=["--listen-address", "0.0.0.0"]) as cluster:
        direct = ["--scheduler", cluster.url, "--ca-file", str(cluster.ca_file)]
        for name in ("a", "b"):
            cluster.add_node(name, 1)
        for i, name in enumerate(("a", "b")):
            cluster.add_pod(f"low-{name}", 20 + i, 20, nodeSelector={"kubernetes.io/hostname": name})
            cluster.wait_bound(f"low-{name}")
        cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses",
                         {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
        cluster.add_pod("waits", 15, 20, priorityClassName="high")
        wait_until(lambda: cluster.events_of("waits"), 15, "the pod waits")

        said = explain("waits", *direct)
        assert said.returncode == 0, said.stderr
        expected = ("default/waits: waiting: no node has a fitting card\n"
                    "  card memory: needs 15 GiB on one card, most free on any card 11 GiB\n\n"
                    "NODE  FITS  REASON                                                               WOULD FIT WITHOUT\n"
                    "a     no    card memory: needs 15 GiB on one card, most free on any card 11 GiB  default/low-a\n"
                    "b     no    card memory: needs 15 GiB on one card, most free on any card 10 GiB  default/low-b\n")
        assert said.stdout == expected, said.stdout
        nodes = json.loads(explain("default/waits", "--json", *direct).stdout)["nodes"]
        assert {node["node"]: node["would_fit_without"] for node in nodes} == {
            "a": ["default/low-a"], "b": ["default/low-b"]}, nodes
        said = explain("low-a", *direct)
        assert said.stdout == "default/low-a: bound on node a\n", said.stdout
        print("ok    asked directly: a waiting pod's nodes and who would have to leave; a bound pod's node")

        # kube-scheduler's sums: two cards asked for on a node that has one, by name and so past every scheduler.
        cluster.add_pod("too-many-cards", 34, 20, labels={GPU_COUNT: "2"}, nodeName="c")  # first: an empty node tempts others
        cluster.add_node("c", 1)
        cluster.add_pod("beside", 12, 5, nodeSelector={"kubernetes.io/hostname": "c"})
        wait_until(lambda: "Insufficient aliyun.com/gpu-mem" in cluster.message_of("beside"), 15, "refused by the sum")
        node = next(node for node in json.loads(explain("beside", "--json", *direct).stdout)["nodes"] if node["node"] == "c")
        assert node == {"node": "c", "fits": False, "reason": "aliyun.com/gpu-mem of the node: needs 12, the pods bound there ask "
                                                              "for 34 of 31 together"}, node
        time.sleep(5)
        assert "sluice.dev/wake" not in (cluster.pod("beside")["metadata"].get("annotations") or {}), "woken in vain"
        cluster.delete_pod("beside")
        cluster.api.delete("/api/v1/nodes/c")
        cluster.delete_pod("too-many-cards")
        print("ok    a node whose cards are free and whose sum is short is not said to fit, and nobody is woken for it")

        for arguments, status, words in (
                (["nobody", *direct], 122, "no live pod default/nobody"),
                (["other/waits", *direct], 122, "no live pod other/waits"),
                (["a/b/c", *direct], 120, "NAMESPACE/POD"),
                (["waits", "--scheduler", "here"], 120, "https://HOST:PORT"),
                (["waits", "--scheduler", cluster.url], 124, "certificate"),
                (["waits", "--scheduler", "http://127.0.0.1:1"], 123, ""),
                (["waits", "--kubeconfig", "/nonexistent"], 122, "/nonexistent"),
                (["waits", "--kubeconfig", cluster.kubeconfig], 123, "sluice-scheduler")):
            said = explain(*arguments)
            assert said.returncode == status and words in said.stderr and not said.stdout, (
                f"{arguments}: {said.returncode}, expected {status}: {said.stderr}")
            assert said.stderr.startswith("sluice explain: ") and said.stderr.count("\n") == 1, said.stderr
        print("ok    every fault has its status and one sentence")

        for name in ("a", "b"):  # as their agents would
            cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"sluice.dev/mode": "core_mem"}}})
            cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [
                {"type": kind, "status": "True", "reason": "Test", "message": "made up"}
                for kind in ("SluiceModeSettled", "SluiceCardsHealthy", "SluiceEnforcing")]}}, "strategic-merge-patch")
        links, status = doctor(cluster, "--node", "a")
        assert status == 1 and links["node a"]["state"] == "ok", links
        assert links["node a"]["found"] == "mode core_mem, 31 units in allocatable", links
        assert links["scheduler"]["state"] == "broken" and "make-secrets" in links["scheduler"]["mend"], links
        links, status = doctor(cluster, "--node", "nobody")
        assert links["node nobody"]["found"] == "the cluster has no such node", links
        print("ok    doctor: a node that holds, a scheduler without its Service")

        if add_service(cluster):
            wait_until(lambda: explain("waits", "--kubeconfig", cluster.kubeconfig).returncode == 0, 20,
                       f"an answer through the API server; {explain('waits', '--kubeconfig', cluster.kubeconfig).stderr}")
            said = explain("waits", "--kubeconfig", cluster.kubeconfig)
            assert said.stdout == expected, said.stdout
            through = cluster.directory / "through"  # a user who signs in through a plugin: kubectl asks
            config = json.loads(open(cluster.kubeconfig).read())
            token = cluster.kubectl("create", "token", "default").stdout.strip()
            credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
            config["users"][0]["user"] = {"exec": {"apiVersion": credential["apiVersion"], "interactiveMode": "Never",
                                                   "command": "echo", "args": [json.dumps(credential)]}}
            through.write_text(json.dumps(config))
            os.environ["PATH"] = f"{cluster.programs}:{os.environ['PATH']}"
            said = explain("waits", "--kubeconfig", str(through))
            assert said.returncode == 124 and "cannot get resource" in said.stderr, said.stderr
            cluster.kubectl("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", "--serviceaccount=default:default")
            wait_until(lambda: explain("waits", "--kubeconfig", str(through)).stdout == expected, 20, "an answer through kubectl")
            assert explain("nobody", "--kubeconfig", str(through)).returncode == 122
            said = explain("nobody", "--kubeconfig", cluster.kubeconfig)
            assert said.returncode == 122 and "no live pod" in said.stderr, said.stderr
            print("ok    through the API server's service proxy")

            links, status = doctor(cluster)
            assert status == 0 and {"node a", "node b", "scheduler"} <= set(links), links
            assert "has called filter" in links["extender in kube-scheduler"]["found"], links
            assert links["lease"]["state"] == links["webhook"]["state"] == "note", links
            cluster.api.patch("/api/v1/nodes/b/status", {"status": {"allocatable": {"aliyun.com/gpu-mem": "0"}}}, "merge-patch")
            links, status = doctor(cluster)
            assert status == 1 and "the kubelet offers none" in links["node b"]["found"], links
            cluster.add_webhook()
            links, status = doctor(cluster, "--node", "a")
            assert status == 0 and links["webhook"]["state"] == "ok", links
            print("ok    doctor: each link of the cluster")
        else:
            print("left out: this machine has no address but loopback for a Service to point at")


if __name__ == "__main__":
    main()
    sys.exit(0)
