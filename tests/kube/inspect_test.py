#!/usr/bin/env python3
"""`kubectl inspect cgpu` through kubectl's own plugin mechanism, against a real API server whose pods the real scheduler
placed: tables, JSON against what the scheduler counts, and every state in which there is little or nothing to show."""

import json
import os
import subprocess
import sys
from pathlib import Path

from sluice_cluster import SluiceCluster, free_port, wait_until

BIN = os.path.join(os.environ["SLUICE_BUILD"], "bin")


class Plugin:
    """Runs the plugin as a user does: kubectl finds it in PATH."""

    def __init__(self, cluster):
        self.kubectl = f"{cluster.programs}/kubectl"
        self.environment = {"PATH": f"{BIN}:{cluster.programs}:/usr/bin:/bin", "HOME": str(cluster.directory),
                            "KUBECONFIG": cluster.kubeconfig}

    def run(self, *arguments, **environment):
        return subprocess.run([self.kubectl, "inspect", "cgpu", *map(str, arguments)], text=True, capture_output=True,
                              timeout=120, env={**self.environment, **environment})

    def text(self, *arguments, notes=""):
        said = self.run(*arguments)
        assert said.returncode == 0, said.stderr
        assert (notes in said.stderr) if notes else not said.stderr, said.stderr
        return said.stdout

    def fails(self, status, words, *arguments, **environment):
        said = self.run(*arguments, **environment)
        assert said.returncode == status and words in said.stderr and not said.stdout, (
            f"{arguments}: {said.returncode}, expected {status} and '{words}': {said.stdout}{said.stderr}")
        assert said.stderr.startswith("kubectl inspect cgpu: "), said.stderr


def write_kubeconfig(path, server, user, authority=None):
    cluster = {"server": server, **({"certificate-authority": str(authority)} if authority else {})}
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "one",
        "clusters": [{"name": "one", "cluster": cluster}], "users": [{"name": "one", "user": user}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}},
                     {"name": "two", "context": {"cluster": "one", "user": "absent"}}]}))
    return path


def empty_states(plugin, cluster):
    assert plugin.text(notes="note: the cluster has no nodes\n") == ""
    cluster.add_node("plain", 0, mode="default", bare=True)
    assert plugin.text(notes="note: none of the cluster's 1 node shares cards; label one with") == ""
    assert json.loads(plugin.run("-o", "json").stdout)["nodes"] == []
    assert plugin.text("plain", notes="note: node plain shares no cards: its mode is default") == ""
    cluster.add_node("labelled", 0, mode="core_mem", bare=True)
    assert "labelled  unknown    0/0" in plugin.text(notes="no card is reported: does the agent run there?")
    cluster.api.delete("/api/v1/nodes/labelled")
    print("ok    no nodes, no sharing nodes, a sharing node without its agent")


def tables(plugin, cluster):
    cluster.add_node("node-a", [32510, 16130], labels={"kind": "both"})
    cluster.add_node("node-b", 1, mode="cgpu")
    for name, address in (("node-a", "192.0.2.1"), ("node-b", "192.0.2.2")):
        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"addresses": [
            {"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]}}, "strategic-merge-patch")
    cluster.add_pod("train", 20, 30)
    cluster.wait_bound("train")
    cluster.add_pod("pair", containers=[{"name": "x", "memory": 8, "core": 20}, {"name": "y", "memory": 3, "core": 5}])
    cluster.wait_bound("pair")
    cluster.add_pod("served", 7)
    cluster.wait_bound("served")
    assert cluster.cards_of("train") == [0] and cluster.cards_of("pair") in ([0], [1])
    card = cluster.cards_of("pair")[0]
    memory = ["31/31", "0/15"] if card == 0 else ["20/31", "11/15"]
    core = ["55/100", "0/100"] if card == 0 else ["30/100", "25/100"]
    lines = plugin.text().splitlines()
    assert lines[0] == ("NAME    IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)  "
                        "CORE0(%)  CORE1(%)  GPU Core(%)"), lines
    assert lines[1].split() == ["node-a", "192.0.2.1", *memory, "31/46", *core, "55/200"], lines
    assert lines[2].split() == ["node-b", "192.0.2.2", "7/31", "0/0", "7/31", "-", "-", "-"], lines
    assert lines[4:] == ["Allocated/Total GPU Memory In Cluster:", "38/77 (49%)  ",
                         "Allocated/Total GPU Core In Cluster:", "55/200 (27%)  "], lines
    assert set(lines[3]) == {"-"}

    # A cluster without compute isolation prints ACK's layout and nothing else.
    assert plugin.text("node-b") == (
        "NAME    IPADDRESS  GPU0(Allocated/Total)  GPU Memory(GiB)\n"
        "node-b  192.0.2.2  7/31                   7/31\n"
        f"{'-' * 47}\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "7/31 (22%)  \n")
    assert plugin.text("-d", "node-b") == (
        "\nNAME:       node-b\nIPADDRESS:  192.0.2.2\n\n"
        "NAME         NAMESPACE  GPU0(Allocated)  \n"
        "served       default    7                \n"
        "Allocated :  7 (22%)    \n"
        "Total :      31         \n"
        f"{'-' * 28}\n\n\n"
        "Allocated/Total GPU Memory In Cluster:  7/31 (22%)  \n")
    print("ok    summary and details of what the scheduler placed")


def agrees_with_scheduler(plugin, cluster):
    seen = json.loads(plugin.text("-o", "json"))
    state = {node["name"]: node for node in cluster.state()["nodes"]}
    for node in seen["nodes"]:
        for card, counted in zip(node["cards"], state[node["name"]]["cards"], strict=True):
            assert card["units"] - card["allocatedUnits"] == counted["free_units"], (card, counted)
            if node["mode"] == "core_mem":
                assert 100 - card["allocatedCorePercent"] == counted["free_core_percent"], (card, counted)
            assert card["uuid"] == counted["uuid"]
    pods = {pod["name"]: pod for node in seen["nodes"] for pod in node["pods"]}
    assert [c["name"] for c in pods["pair"]["containers"]] == ["x", "y"]
    assert pods["pair"]["containers"][0]["cards"][0]["units"] == 8
    yaml = plugin.text("-o", "yaml")
    assert "kind: Inspection\n" in yaml and "  - name: node-a\n" in yaml, yaml
    assert "train=" not in plugin.text("-d") and "x=8/20%,y=3/5%" in plugin.text("-d", "-o", "wide")
    assert "core_mem" in plugin.text("-o", "wide")
    print("ok    JSON says what the scheduler counts; YAML and wide")


def odd_pods(plugin, cluster):
    cluster.add_pod("by-name", 30, 10, nodeName="node-a")  # no card has room for it
    lines = plugin.text(notes="pod default/by-name on node-a: it was bound without Sluice's scheduler").splitlines()
    assert "PENDING(Allocated)" in lines[0] and lines[1].split()[4] == "30", lines
    assert lines[1].split()[5] == "31/46", f"what has no card is allocated nowhere: {lines}"
    row = next(line.split() for line in plugin.text("-d", "node-a", notes="by-name").splitlines() if "by-name" in line)
    assert row == ["by-name", "default", "0", "0", "30", "0", "0", "10"], row
    cluster.delete_pod("by-name")

    key = cluster.directory / "signing.pub"
    subprocess.run(["openssl", "pkey", "-in", cluster.directory / "signing.key", "-pubout", "-out", key], check=True)
    assert plugin.text("--allocation-key", key) == plugin.text()
    cluster.kubectl("annotate", "--overwrite", "pod", "served", 'sluice.dev/allocation={"version":1,"cards":[],"containers":{}}')
    plugin.text("--allocation-key", key, notes="served on node-b: its record does not bear the scheduler's signature")
    cluster.kubectl("annotate", "pod", "served", "sluice.dev/signature-")
    plugin.text(notes="served on node-b: its record (sluice.dev/allocation) is not signed by the scheduler")
    cluster.kubectl("annotate", "--overwrite", "pod", "served", "sluice.dev/allocation={", "sluice.dev/signature=x")
    plugin.text(notes="served on node-b: its record (sluice.dev/allocation) cannot be read")

    cluster.stop_sluice()  # it would give these pods cards of its own choice
    cluster.add_node("old", [16130, 16130], mode="cgpu", bare=True)
    cluster.add_pod("v1", 4, nodeName="old", annotations={"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"})
    cluster.add_pod("v2", 3, nodeName="old", annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":3}}',
                                                          "ALIYUN_COM_GPU_MEM_IDX": "1"})
    row = next(line.split() for line in plugin.text("old").splitlines() if line.startswith("old"))
    assert row == ["old", "unknown", "3/15", "4/15", "7/30"], row
    cluster.add_pod("waits", 31, 100)
    plugin.text(notes="note: 1 pod waits for a shared card without a node; `sluice explain")
    cluster.finish_pod("v1")
    assert "old   unknown    3/15" in plugin.text("old")
    print("ok    pods without a card, unsigned and unreadable records, ACK's older annotations, finished pods")


def broken_states(plugin, cluster):
    server, folder = cluster.control.state()["server"], Path(cluster.directory)
    authority = cluster.control.directory / "pki" / "ca.crt"
    plugin.fails(123, "does not answer", "--kubeconfig",
                 write_kubeconfig(folder / "dead", f"https://127.0.0.1:{free_port()}", {"token": "x"}, authority))
    plugin.fails(123, "certificate", "--kubeconfig", write_kubeconfig(folder / "stranger", server, {"token": "x"}))
    plugin.fails(124, "does not know this user", "--kubeconfig",
                 write_kubeconfig(folder / "expired", server, {"token": "x"}, authority))
    token = cluster.kubectl("create", "token", "default").stdout.strip()
    limited = write_kubeconfig(folder / "limited", server, {"token": token}, authority)
    plugin.fails(124, "needed are 'list' on nodes and on pods of all namespaces", "--kubeconfig", limited)
    plugin.fails(122, "'absent'", "--kubeconfig", limited, "--context", "two")
    plugin.fails(122, "'three'", "--context", "three")
    plugin.fails(122, "/nonexistent", "--kubeconfig", "/nonexistent")
    # A user who signs in through a plugin, as on most managed clouds, is asked for by kubectl.
    def signs_in(name, token):
        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
        return write_kubeconfig(folder / name, server, {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "echo",
            "args": [json.dumps(credential)]}}, authority)
    through = signs_in("through", token)
    plugin.fails(124, "needed are 'list' on nodes and on pods of all namespaces", "--kubeconfig", through)
    plugin.fails(124, "You must be logged in", "--kubeconfig", signs_in("through-expired", "x"))
    plugin.fails(122, "PATH has none", "--kubeconfig", through, PATH=BIN)
    plugin.fails(122, "the cluster has no node 'nowhere'; nodes that share cards: node-a, node-b, old", "nowhere")
    plugin.fails(2, "-o is wide, json or yaml, not 'xml'", "-o", "xml")
    plugin.fails(122, "nothing.pem", "--allocation-key", "nothing.pem")
    for verb in ("get", "list"):
        cluster.kubectl("create", "clusterrole", f"viewer-{verb}", f"--verb={verb}", "--resource=nodes,pods")
    cluster.kubectl("create", "clusterrolebinding", "viewer", "--clusterrole=viewer-list", "--serviceaccount=default:default")
    wait_until(lambda: plugin.run("--kubeconfig", limited).returncode == 0, 20, "list on nodes and pods is enough")
    assert plugin.run("--kubeconfig", limited).stdout == plugin.run().stdout
    assert plugin.run("--kubeconfig", through).stdout == plugin.run().stdout
    assert plugin.run("--help").stdout.startswith("Show the nodes of a cluster")
    assert "kubectl-inspect-cgpu" in subprocess.run([plugin.kubectl, "plugin", "list"], env=plugin.environment, text=True,
                                                    capture_output=True).stdout
    print("ok    every fault has its status and one sentence; the right to list is enough")


def main():
    with SluiceCluster() as cluster:
        plugin = Plugin(cluster)
        for step in (empty_states, tables, agrees_with_scheduler, odd_pods, broken_states):
            step(plugin, cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
