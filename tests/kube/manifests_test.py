#!/usr/bin/env python3
"""deploy/ applies cleanly and is enough: the scheduler runs with nothing but the rights of its ServiceAccount, the second
scheduler's configuration is taken by a real kube-scheduler, the admission policy warns without a webhook."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from sluice_cluster import GPU_CORE, GPU_COUNT, GPU_MEM, SluiceCluster, free_port, wait_until

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
NAMESPACE = "sluice-system"


def apply(cluster, text):
    result = cluster.kubectl("apply", "-f", "-", stdin=text)
    assert result.returncode == 0, result.stderr
    return result


def service_account_kubeconfig(cluster, name="sluice-scheduler"):
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", name).stdout.strip()
    config = json.loads(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": token}
    path = cluster.directory / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


def check_rights(cluster):
    """Binds, wakes, writes an event and leads with the ServiceAccount's token alone."""
    cluster.stop_sluice()
    cluster.sluice_kubeconfig = service_account_kubeconfig(cluster)
    cluster.scheduler_arguments = ["--leader-elect", "--lease-namespace", NAMESPACE, "--advertise-url", cluster.url]
    cluster.start_sluice()
    cluster.add_node("a")
    wait_until(lambda: "\nsluice_scheduler_leading 1\n" in cluster.extender("/metrics"), 20, "leading")
    cluster.add_pod("p", 20, 50)
    cluster.wait_bound("p")
    cluster.add_pod("q", 20, 50)
    wait_until(lambda: cluster.events_of("q"), 10, "q refused")
    cluster.add_pod("big", 40, 50)
    wait_until(lambda: any("largest has 31 GiB" in text for text in cluster.events_of("big")), 15, "our own event")
    cluster.delete_pod("p")
    cluster.wait_bound("q", 10)
    # Other ServiceAccounts and this one have nothing more than that.
    who = f"system:serviceaccount:{NAMESPACE}:sluice-scheduler"
    for verb, what in (("delete", "pods"), ("update", "nodes"), ("get", "secrets"), ("create", "pods"), ("patch", "nodes")):
        answer = cluster.kubectl("auth", "can-i", verb, what, "-A", "--as", who)
        assert answer.stdout.strip() == "no", f"{who} may {verb} {what}"
    log = (cluster.directory / "sluice-scheduler.log").read_text()
    assert "forbidden" not in log, log
    print("ok    the ServiceAccount's rights are enough, and no more than enough")


def check_policy(cluster):
    """Each rule of a request by its own words, where containers, init containers and the label of a template have it."""
    apply(cluster, (DEPLOY / "manifests" / "policy.yaml").read_text())

    def container(name, limits):
        return {"name": name, "image": "n", "resources": {"limits": limits}}

    def job(main, init=(), count=None):
        template = {"metadata": {"labels": {GPU_COUNT: count} if count is not None else {}}, "spec": {
            "restartPolicy": "Never", "containers": [container(f"c{i}", one) for i, one in enumerate(main)],
            "initContainers": [container(f"i{i}", one) for i, one in enumerate(init)]}}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "policy", "namespace": "default"},
                "spec": {"suspend": True, "template": template}}

    def said(manifest):
        result = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest))
        assert result.returncode == 0, result.stderr
        return [line.split("sluice: ")[1] for line in result.stderr.splitlines() if "sluice: " in line]

    both, memory, core = {GPU_MEM: "10", GPU_CORE: "30"}, {GPU_MEM: "10"}, {GPU_CORE: "30"}
    odd, whole = {GPU_MEM: "10", GPU_CORE: "33"}, {"nvidia.com/gpu": "1"}
    wait_until(lambda: said(job([odd])), 20, "a warning at 33 percent")
    cases = [
        (job([odd]), "multiple of 5"), (job([both], [odd]), "multiple of 5"), (job([core]), "gpu-mem beside it"),
        (job([{GPU_CORE: "30", GPU_MEM: "0"}]), "gpu-mem beside it"), (job([both, memory]), "the same resources"),
        (job([both], [memory]), "the same resources"), (job([{GPU_MEM: "10G"}]), "without a suffix"),
        (job([both, whole]), "stand alone"), (job([both], count="zero"), "whole number from 1 to 32"),
        (job([both], count="0"), "whole number from 1 to 32"), (job([both], count="33"), "whole number from 1 to 32"),
        (job([both], count="4"), "divide evenly"), (job([{GPU_MEM: "10", GPU_CORE: "25"}], count="2"), "divide evenly"),
        (job([both]), None), (job([memory]), None), (job([{}]), None), (job([whole]), None), (job([both], [both]), None),
        (job([both], count="2"), None), (job([{GPU_MEM: "10", GPU_CORE: "0"}]), None), (job([{GPU_MEM: "1000"}]), None),
        (job([{}], count="zero"), None)]
    for manifest, words in cases:
        lines = said(manifest)
        assert (words is None and not lines) or (words and any(words in line for line in lines)), (manifest, words, lines)
    from webhook_test import manifests
    for core, warned in ((33, True), (30, False)):
        for number, manifest in enumerate(manifests(core)):
            manifest.setdefault("metadata", {}).update(name=f"kind-{number}", namespace="default")
            assert bool(said(manifest)) == warned, (manifest["kind"], core, said(manifest))
    print(f"ok    the admission policy warns of what the webhook warns of, without one: {len(cases)} requests, 7 kinds")


def check_webhook(cluster):
    """As deploy/scheduler/make-webhook registers it: through the Service, with the certificate of make-secrets."""
    addresses = [one for one in subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split() if ":" not in one]
    if not addresses:
        print("left out: the webhook through its Service, since this machine has no address but loopback")
        return
    arguments = ["--listen-address", "0.0.0.0", "--webhook-scheduler-name", "sluice", "--webhook-toleration", "sluice.dev/sharing"]
    for option, key in (("--tls-cert", "tls.crt"), ("--tls-key", "tls.key")):
        secret = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "secret", "sluice-scheduler-tls", "-o", "json").stdout)
        path = cluster.directory / key
        path.write_bytes(base64.b64decode(secret["data"][key]))
        arguments += [option, path]
    port = free_port()
    process = cluster.start_replica(port, arguments)
    try:
        cluster.api.patch(f"/api/v1/namespaces/{NAMESPACE}/services/sluice-scheduler",
                          [{"op": "replace", "path": "/spec/ports/0/targetPort", "value": port}], "json-patch")
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        cluster.api.post(pods, {"metadata": {"name": "stands-for-it", "labels": {"app": "sluice-scheduler"}}, "spec": {
            "nodeName": "a", "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "none"}]}})
        cluster.api.patch(f"{pods}/stands-for-it/status", {"status": {
            "phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": addresses[0]}],
            "conditions": [{"type": "Ready", "status": "True"}]}}, "strategic-merge-patch")
        environment = {"PATH": f"{cluster.programs}:/usr/bin:/bin", "KUBECONFIG": str(cluster.kubeconfig),
                       "HOME": str(cluster.directory)}
        made = subprocess.run([DEPLOY / "scheduler" / "make-webhook", "--fail"], env=environment, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        apply(cluster, made.stdout)
        wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong", "namespace": "default"}, "spec": {
            "containers": [{"name": "c", "image": "n", "resources": {"limits": {GPU_MEM: "10", GPU_CORE: "33"}}}]}}
        def warned():
            return "Warning: sluice: " in cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong)).stderr
        wait_until(warned, 30, "the webhook warns")
        wrong["spec"]["containers"][0]["resources"]["limits"][GPU_CORE] = "30"
        made = cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(wrong))
        assert json.loads(made.stdout)["spec"]["schedulerName"] == "sluice", made.stdout + made.stderr
        cluster.kubectl("delete", "mutatingwebhookconfiguration", "sluice")
    finally:
        process.terminate()
        process.wait()
    print("ok    make-webhook registers it: warnings and the second scheduler's name through the Service, over TLS")


def check_second_scheduler(cluster):
    """The shipped configuration, its file and address replaced by this cluster's."""
    kustomized = cluster.kubectl("apply", "-k", DEPLOY / "scheduler")
    assert kustomized.returncode == 0, kustomized.stderr
    parts = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "deployment/sluice-second-scheduler", "-o", "json").stdout)
    volumes = {volume["name"]: volume for volume in parts["spec"]["template"]["spec"]["volumes"]}
    maps = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "configmap", volumes["config"]["configMap"]["name"], "-o", "json").stdout)
    text = maps["data"]["config.yaml"]  # what the Deployment's kube-scheduler reads
    text = text.replace("https://sluice-scheduler.sluice-system.svc", cluster.url).replace("enableHTTPS: true", "enableHTTPS: false")
    text = re.sub(r"    tlsConfig:\n(      \S+: \S+\n)+", "", text)
    text += f"clientConnection:\n  kubeconfig: {service_account_kubeconfig(cluster, 'sluice-second-scheduler')}\n"
    path = cluster.directory / "second.yaml"
    path.write_text(text)
    log = open(cluster.directory / "second-scheduler.log", "wb")
    process = subprocess.Popen([f"{cluster.programs}/kube-scheduler", "--config", str(path), "--secure-port", str(free_port()),
                                "--bind-address", "127.0.0.1"], stdout=log, stderr=log)
    try:
        cluster.delete_pod("q")
        cluster.add_pod("second", 10, 30, schedulerName="sluice")
        cluster.wait_bound("second", 30)
        assert cluster.cards_of("second") == [0]
        holder = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/sluice-second-scheduler")
        assert holder["spec"]["holderIdentity"], holder
    finally:
        process.terminate()
        process.wait()
    said = (cluster.directory / "second-scheduler.log").read_text()
    assert "forbidden" not in said, [line for line in said.splitlines() if "forbidden" in line][:3]
    print("ok    a second scheduler with the shipped configuration and rights leads and binds through the extender")


def main():
    # The API server resolves Services by their endpoints, as kube-proxy would.
    with SluiceCluster(apiserver_arguments=["--enable-aggregator-routing=true"]) as cluster:
        apply(cluster, (DEPLOY / "manifests" / "scheduler.yaml").read_text())
        secrets = subprocess.run([DEPLOY / "scheduler" / "make-secrets"], capture_output=True, text=True, check=True,
                                 env={**os.environ, "SLUICE_NAMESPACE": NAMESPACE})
        apply(cluster, secrets.stdout)
        apply(cluster, (DEPLOY / "manifests" / "scheduler.yaml").read_text())  # again: nothing changes, nothing fails
        print("ok    manifests and secrets apply")
        check_rights(cluster)
        check_policy(cluster)
        check_second_scheduler(cluster)
        check_webhook(cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
