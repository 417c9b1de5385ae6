#!/usr/bin/env python3
"""Every case of cases/*.json against a real kube-scheduler and API server: node, card, or the event that says why not."""

import json
import sys
import time
import urllib.error
from pathlib import Path

from sluice_cluster import SluiceCluster, wait_until

HERE = Path(__file__).resolve().parent
CHECKS = {"node", "cards", "cards_count", "units", "event", "rejected", "then", "annotations_after"}


def check_pod(cluster, pod):
    wanted = {key: pod[key] for key in pod if key in CHECKS}
    spec = {key: pod[key] for key in pod if key not in CHECKS}
    try:
        cluster.add_pod(**spec)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        assert "rejected" in wanted and wanted["rejected"] in text, f"refused by the API server: {text}"
        return
    assert "rejected" not in wanted, "the API server took it"
    name = pod["name"]
    if spec.get("schedulerName"):  # of another scheduler: it is there, no more
        act(cluster, name, wanted.get("then", ""))
        return
    if "event" in wanted:
        bound = wanted.get("node")  # with a node: bound there, and told something all the same
        wait_until(lambda: any(wanted["event"] in text for text in cluster.events_of(name)), 15,
                   f"an event of {name} with '{wanted['event']}'; there are {cluster.events_of(name)}")
        assert cluster.node_of(name) == bound, f"{name} is on {cluster.node_of(name)}, expected {bound}"
        return
    node = cluster.wait_bound(name)
    assert node == wanted["node"], f"{name} is on {node}, expected {wanted['node']}"
    cards = cluster.cards_of(name)
    assert "cards" not in wanted or cards == wanted["cards"], f"{name} has cards {cards}, expected {wanted['cards']}"
    assert "cards_count" not in wanted or len(cards) == wanted["cards_count"], f"{name} has cards {cards}"
    if "units" in wanted:
        record = json.loads(cluster.pod(name)["metadata"]["annotations"]["sluice.dev/allocation"])
        assert record["cards"][0]["units"] == wanted["units"], record
    for key, value in wanted.get("annotations_after", {}).items():
        said = cluster.pod(name)["metadata"]["annotations"].get(key)
        assert said == value, f"{name} has {key}={said}, expected {value}"
    act(cluster, name, wanted.get("then", ""))


def act(cluster, name, what):
    """What a case does once a pod of it is where it belongs."""
    verb, _, rest = what.partition(" ")
    if verb == "finish":
        cluster.finish_pod(name)
    elif verb == "delete" and not rest:
        cluster.delete_pod(name)
    elif verb == "delete":
        node = rest.removeprefix("node ")
        cluster.api.delete(f"/api/v1/nodes/{node}")
        wait_until(lambda: node not in [one["name"] for one in cluster.state()["nodes"]], 5, f"{node} forgotten")
    elif verb == "nominate":
        cluster.api.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"nominatedNodeName": rest}}, "strategic-merge-patch")
        time.sleep(0.2)  # the watch
    else:
        assert not what, f"a case says 'then': '{what}'"


def clean(cluster, case):
    for pod in case["pods"]:
        try:
            cluster.delete_pod(pod["name"])
        except urllib.error.HTTPError:
            pass
    wait_until(lambda: not cluster.api.get("/api/v1/namespaces/default/pods")["items"], 10, "pods gone")
    for node in case["nodes"]:
        try:
            cluster.api.delete(f"/api/v1/nodes/{node['name']}")
        except urllib.error.HTTPError:
            pass
    for event in cluster.api.get("/api/v1/namespaces/default/events")["items"]:
        cluster.api.delete(f"/api/v1/namespaces/default/events/{event['metadata']['name']}")
    wait_until(lambda: not cluster.state()["nodes"] and not cluster.state()["waiting"], 10, "state empty")


def main():
    only = sys.argv[1:]
    passed, failed = 0, []
    with SluiceCluster() as cluster:
        for path in sorted((HERE / "cases").glob("*.json")):
            for case in json.loads(path.read_text()):
                if only and not any(word in case["case"] for word in only):
                    continue
                started = time.monotonic()
                if cluster.scheduler_arguments != case.get("arguments", []):
                    cluster.stop_sluice()
                    cluster.scheduler_arguments = case.get("arguments", [])
                    cluster.start_sluice()
                try:
                    for node in case["nodes"]:
                        cluster.add_node(**node)
                    wait_until(lambda: len(cluster.state()["nodes"]) == len(case["nodes"]), 10, "nodes known")
                    for pod in case["pods"]:
                        check_pod(cluster, pod)
                    passed += 1
                    print(f"ok    {time.monotonic() - started:5.1f} s  {case['case']}", flush=True)
                except (AssertionError, urllib.error.HTTPError) as error:
                    failed.append(case["case"])
                    print(f"FAIL  {case['case']}: {error}", flush=True)
                clean(cluster, case)
    print(f"{passed} cases hold, {len(failed)} do not")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
