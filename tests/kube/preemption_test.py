#!/usr/bin/env python3
"""Preemption by priority: victims are moved onto one card where the node's sum is short, and there is no loop of attempts
where only a card is short."""

import json
import sys
import time

from sluice_cluster import SluiceCluster, wait_until


def add_classes(cluster):
    for name, value in (("low", 10), ("high", 1000)):
        cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})


def attempts(cluster):
    text = cluster.extender("/metrics")
    line = [line for line in text.splitlines() if line.startswith('sluice_scheduler_request_duration_seconds_count{verb="filter"}')]
    return int(float(line[0].split()[-1]))


def sum_short(cluster):
    """Six low pods fill both cards' compute; the high one needs half a card and two thirds of its memory."""
    cluster.add_node("a", 2, labels={"ack.node.gpu.placement": "spread"})
    for i in range(6):
        cluster.add_pod(f"low-{i}", 10, 30, priorityClassName="low")
        cluster.wait_bound(f"low-{i}")
    before = {f"low-{i}": cluster.cards_of(f"low-{i}")[0] for i in range(6)}
    cluster.add_pod("high", 20, 50, priorityClassName="high")
    wait_until(lambda: cluster.node_of("high"), 30, "the high pod takes its place")
    left = {pod["metadata"]["name"] for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]}
    victims = [name for name in before if name not in left]
    assert len(victims) == 2, f"victims {victims}"
    assert len({before[name] for name in victims}) == 1, f"victims {victims} on cards {before}"
    assert cluster.cards_of("high") == [before[victims[0]]]
    print(f"ok    sum short: {victims} of card {before[victims[0]]} made room")
    for name in left | {"high"}:
        cluster.delete_pod(name)
    wait_until(lambda: not cluster.api.get("/api/v1/namespaces/default/pods")["items"], 10, "pods gone")
    cluster.api.delete("/api/v1/nodes/a")


def card_short(cluster):
    """Enough in the node's sum, not on a card: kube-scheduler cannot preempt for that, and must not loop trying."""
    for name in ("a", "b"):
        cluster.add_node(name, 2, labels={"ack.node.gpu.placement": "spread"})
    for i in range(4):
        cluster.add_pod(f"low-{i}", 20, 20, priorityClassName="low")
        cluster.wait_bound(f"low-{i}")
    cluster.add_pod("high", 15, 20, priorityClassName="high")
    wait_until(lambda: cluster.events_of("high"), 10, "the high pod is refused")
    time.sleep(3)
    before = attempts(cluster)
    time.sleep(8)
    more = attempts(cluster) - before
    assert more <= 4, f"{more} attempts in 8 quiet seconds"
    said = json.loads(cluster.extender("/explain/default/high"))
    helpers = [node.get("would_fit_without") for node in said["nodes"]]
    assert all(len(names) == 1 for names in helpers), helpers
    assert cluster.node_of("high") is None
    print(f"ok    card short: {more} attempts in 8 quiet seconds, explain names {helpers}")


def main():
    with SluiceCluster() as cluster:
        add_classes(cluster)
        sum_short(cluster)
        card_short(cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
