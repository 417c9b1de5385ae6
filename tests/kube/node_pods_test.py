#!/usr/bin/env python3
"""Whose card is whose, under load: 50 equal pods at once on one node of several cards, then a churn of random pods.

    node_pods_test.py [CHURN] [SEED] [--churn-only] [--seconds N]

Two nodes, one whose pods ask for memory and compute, one for pods that ask for memory alone.

CHURN: pods of the churn (100; 1,000 for the long run); SEED: of the choices (1); --seconds: no new pods after that long,
for a slow machine.

For every pod the signed record, the kubelet's record, the CDI spec, the container's environment and mounts and the card
itself name the same cards; no pod is failed by us; afterwards nothing is left."""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import node_world

CARDS = 4
EQUAL = 50


def pod_of(name, units, core, **options):
    command = options.get("command", ["card_probe", "--alloc", "100", "--sleep", "10000"])
    limits = {"aliyun.com/gpu-mem": str(units), "aliyun.com/gpu-core.percentage": str(core)}
    containers = options.get("containers") or [{"name": "c", "resources": {"limits": limits}}]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "enableServiceLinks": False,
            "automountServiceAccountToken": False, "containers": containers}
    if options.get("init"):
        spec["initContainers"] = options["init"]
    for container in containers + spec.get("initContainers", []):
        container.update(image="sluice-test/probe:1", imagePullPolicy="Never")
        container.setdefault("command", command)
    return {"metadata": {"name": name, "labels": options.get("labels", {})}, "spec": spec}


def create(cluster, pod):
    cluster.api.post("/api/v1/namespaces/default/pods", pod)


def pods(cluster):
    return {pod["metadata"]["name"]: pod for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]}


def check_record(node, proto, now):
    """The kubelet's record as it tells others (PodResources List) is its checkpoint, gives no id twice, and is what the pods
    asked for; each slot of the agent is held by the container that the record has for its ids."""
    import node_truth
    listed, kept, owners = node_truth.listed_ids(node, proto), node_truth.kubelet_ids(node), {}
    for name, pod in now.items():
        for resource, count in pod["spec"]["containers"][0]["resources"]["limits"].items():
            ids = listed.get(("default", name, "c", resource))
            assert ids and len(ids) == int(count), f"{name}: {resource} {count}, the kubelet lists {ids}"
            assert ids == kept.get((pod["metadata"]["uid"], "c", resource)), f"{name}: the kubelet lists {ids}, its checkpoint has others"
            for one in ids:
                assert owners.setdefault((resource, one), name) == name, f"{one} of {resource} is {name}'s and {owners[resource, one]}'s"
    slots = [json.loads(path.read_text()) for path in node.path("/var/lib/sluice/slots").glob("*.json")]
    assert len(slots) == 2 * len(now), f"{len(slots)} slots for {len(now)} pods"
    for slot in slots:
        assert {owners[slot["resource"], one] for one in slot["ids"]} == {slot["pod"]}, slot


def fifty_at_once(cluster, node, proto):
    import node_truth
    names = [f"equal-{i}" for i in range(EQUAL)]
    began = time.monotonic()
    for name in names:
        create(cluster, pod_of(name, 2, 5))

    def running():
        now = pods(cluster)
        failed = [f"{name}: {now[name]['status']}" for name in names if now[name]["status"].get("phase") == "Failed"]
        assert not failed, failed[0]
        return all(now[name]["status"].get("phase") == "Running" for name in names) and now
    now = cluster.wait_for(running, 240, f"{EQUAL} pods run")
    seconds = time.monotonic() - began

    def all_on_cards():
        return sum(1 for cards in node_truth.cards_in_use(node).values() if cards) >= EQUAL
    cluster.wait_for(all_on_cards, 60, "every pod uses its card")
    devices, in_use = node_truth.kubelet_devices(node), node_truth.cards_in_use(node)
    used = {}
    for name in names:
        cards = node_truth.check_running(node, now[name], devices=devices, in_use=in_use)
        used[cards[0]] = used.get(cards[0], 0) + 1
    assert sum(used.values()) == EQUAL and max(used.values()) <= 15, used
    given = [device for (uid, _), found in devices.items() for device in found]
    assert len(given) == len(set(given)), "one grant for two containers"
    check_record(node, proto, {name: now[name] for name in names})
    print(f"ok    {EQUAL} equal pods at once: all run after {seconds:.0f} s; record = kubelet = PodResources = CDI = container = card; per card {sorted(used.values())}")
    cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
    cluster.wait_for(lambda: not pods(cluster), 60, "the pods are gone")
    node_truth.wait_nothing_left(cluster, node)


def random_pod(rng, number):
    """Sizes and shapes as they come: memory alone or compute too, one or two containers, one to four cards, ordinary init
    containers, sidecars, quick or not."""
    cards = rng.choice([1, 1, 1, 1, 2, 4])
    memory_only = rng.random() < 0.25
    labels = {"aliyun.com/gpu-count": str(cards)} if cards > 1 else {}
    # A third of them stay on their cards for as long as somebody needs to look.
    probe = "echo devices=$NVIDIA_VISIBLE_DEVICES; card_probe --alloc 64 "
    say = ["sh", "-c", probe + rng.choice(["", "; sleep 0.2", "--sleep 2"])]

    def container(name):
        units = cards * rng.choice([1, 1, 2, 3, 5, 8, 12])
        core = cards * rng.choice([5, 5, 10, 15, 20, 30])
        limits = {"aliyun.com/gpu-mem": str(units)}
        if not memory_only:
            limits["aliyun.com/gpu-core.percentage"] = str(core)
        return {"name": name, "command": say, "resources": {"limits": limits}}
    containers = [container(f"c{i}") for i in range(rng.choice([1, 1, 1, 2]))]
    if rng.random() < 0.2:
        containers.append({"name": "no-card", "command": ["true"]})
    init = [container("i0")] if rng.random() < 0.2 else []
    if rng.random() < 0.2:
        # The pod ends when its main containers do; they come when the sidecar has had its look.
        side = container("side")
        side.update(command=["sh", "-c", probe + "; touch /probed; exec sleep 1000"], restartPolicy="Always",
                    startupProbe={"exec": {"command": ["sh", "-c", "test -e /probed"]}, "periodSeconds": 1, "failureThreshold": 60})
        init.insert(rng.randrange(len(init) + 1), side)
    return pod_of(f"churn-{number}", 0, 0, containers=containers, init=init, labels=labels)


def said(node, pod, container):
    """What a container printed, from the node's log files."""
    folder = f"default_{pod['metadata']['name']}_{pod['metadata']['uid']}"
    lines = []
    for log in sorted(node.path(f"/var/log/pods/{folder}/{container}").glob("*.log")):
        lines += [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
    return lines


def check_ended(node, pod):
    """A pod of the churn that has ended: well, and every container saw the recorded cards, by environment and by driver."""
    import node_truth
    status = pod["status"]
    assert status["phase"] == "Succeeded", f"{pod['metadata']['name']}: {status}"
    record = node_truth.allocation(pod)
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        lines = said(node, pod, container["name"])
        if container["name"] == "no-card":
            continue
        recorded = sorted(card["uuid"] for card in record["cards"])
        where = f"{pod['metadata']['name']}/{container['name']}: {lines}"
        seen = [line.split("=", 1)[1] for line in lines if line.startswith("devices=")]
        assert seen and sorted(seen[0].split(",")) == recorded, f"{where}, recorded {recorded}"
        by_driver = sorted(line.split()[2] for line in lines if line.startswith("card "))
        assert by_driver == recorded, f"{where}, recorded {recorded}"
        assert "alloc 0" in lines, where
        limit = int(container["resources"]["limits"]["aliyun.com/gpu-mem"]) // len(recorded) * 32510 // 31
        totals = {int(line.split()[3]) for line in lines if line.startswith("card ")}
        assert totals == {limit}, f"{where}: totals {totals}, limit {limit}"


def look_at_cards(node, now, seen):
    """Who is on the cards by the cards' own word: each process on cards of its pod's record. seen: names of the pods met."""
    import node_truth
    by_uid = {pod["metadata"]["uid"]: pod for pod in now.values() if pod}
    for pid, cards in node_truth.cards_in_use(node).items():
        try:
            text = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            continue  # ended meanwhile
        pod = next((pod for uid, pod in by_uid.items() if uid in text), None)
        if pod is None:
            continue  # made after the list was taken
        recorded = node_truth.recorded_cards(pod)
        if not recorded:
            continue  # listed before it was bound
        assert set(cards) <= set(recorded), f"{pod['metadata']['name']}: the card has it on {cards}, recorded are {recorded}"
        seen.add(pod["metadata"]["name"])


def churn(cluster, nodes, count, seed, seconds=None):
    import node_truth
    seen, shapes = set(), {"sidecar": 0, "memory alone": 0}
    rng = random.Random(seed)
    made = done = 0
    began = time.monotonic()
    deadline = began + 60 + 6 * count
    while done < count:
        assert time.monotonic() < deadline, f"{done} of {count} pods after {time.monotonic() - began:.0f} s: {cluster.kubectl('get', 'pods').stdout[-1500:]}"
        now = pods(cluster)
        for node in nodes:
            look_at_cards(node, now, seen)
        if seconds and made and time.monotonic() - began > seconds:
            count = made
        for name, pod in now.items():
            phase = pod["status"].get("phase")
            if phase in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]:
                check_ended(next(node for node in nodes if node.name == pod["spec"]["nodeName"]), pod)
                shapes["sidecar"] += any(one.get("restartPolicy") == "Always" for one in pod["spec"].get("initContainers", []))
                shapes["memory alone"] += pod["spec"]["nodeName"] == nodes[1].name
                cluster.delete_pod(name)
                done += 1
        while made < count and len(now) + 1 < 20:
            create(cluster, random_pod(rng, made))
            now[f"churn-{made}"] = None
            made += 1
        time.sleep(0.3)
    cluster.wait_for(lambda: not pods(cluster), 60, "the pods are gone")
    for node in nodes:
        node_truth.wait_nothing_left(cluster, node)
    assert len(seen) >= count // 10, f"{len(seen)} of {count} pods were met on the cards"
    assert count < 50 or all(shapes.values()), f"of {count} pods: {shapes}"
    print(f"ok    churn of {count} random pods in {time.monotonic() - began:.0f} s: record = environment = driver = limit in each container, "
          f"the cards agree ({len(seen)} pods met on them), none was failed, nothing is left ({shapes})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--churn-only", action="store_true")
    parser.add_argument("--seconds", type=float)
    wanted = parser.parse_args()
    node_world.enter()
    import images
    import node_truth
    from node_install import InstalledCluster
    proto = node_truth.make_proto(node_world.folder() / "proto")
    with InstalledCluster(images=[images.probe(node_world.folder())]) as cluster:
        node = cluster.add_sharing_node("node-b")
        memory_node = cluster.add_sharing_node("node-m", mode="cgpu")
        cluster.install(count=CARDS)
        cluster.wait_allocatable(node, {"aliyun.com/gpu-mem": str(31 * CARDS), "aliyun.com/gpu-core.percentage": str(100 * CARDS)})
        cluster.wait_allocatable(memory_node, {"aliyun.com/gpu-mem": str(31 * CARDS)})
        if not wanted.churn_only:
            fifty_at_once(cluster, node, proto)
        churn(cluster, [node, memory_node], wanted.count, wanted.seed, wanted.seconds)


if __name__ == "__main__":
    main()
    sys.exit(0)
