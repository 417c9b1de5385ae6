#!/usr/bin/env python3
"""Allocation records against a real API server: pods bound without us are given one, forged and edited ones free nothing
and give nothing."""

import base64
import json
import subprocess
import sys
import threading
import time

from sluice_cluster import SluiceCluster, wait_until

RECORD, SIGNATURE = "sluice.dev/allocation", "sluice.dev/signature"


def authentic(cluster, pod):
    """Checked with openssl and the scheduler's key, by what the manual says is signed."""
    annotations = pod["metadata"].get("annotations", {})
    if RECORD not in annotations or SIGNATURE not in annotations:
        return False
    folder = cluster.directory
    (folder / "text").write_text(
        f"sluice allocation 1\n{pod['metadata']['uid']}\n{pod['spec']['nodeName']}\n{annotations[RECORD]}")
    (folder / "signature").write_bytes(base64.b64decode(annotations[SIGNATURE]))
    return subprocess.run(["openssl", "pkeyutl", "-verify", "-rawin", "-inkey", folder / "signing.key", "-in",
                           folder / "text", "-sigfile", folder / "signature"], capture_output=True).returncode == 0


def free_units(cluster, node="a"):
    return [card["free_units"] for one in cluster.state()["nodes"] if one["name"] == node for card in one["cards"]]


def annotate(cluster, name, annotations):
    cluster.api.patch(f"/api/v1/namespaces/default/pods/{name}", {"metadata": {"annotations": annotations}})


def is_adopted(cluster, name):
    return authentic(cluster, cluster.pod(name))


def clean(cluster):
    for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]:
        cluster.delete_pod(pod["metadata"]["name"])
    wait_until(lambda: free_units(cluster) == [31, 31], 10, "nothing is held")


def bound_by_name(cluster):
    cluster.add_pod("named", 20, 20, nodeName="a")
    wait_until(lambda: is_adopted(cluster, "named"), 5, "the pod is given a card")
    wait_until(lambda: free_units(cluster) == [11, 31], 5, "it is counted on that card alone")
    wait_until(lambda: any("given card 0 of node a" in text for text in cluster.events_of("named")), 5, "an event says so")
    cluster.add_pod("beside", 31, 20)
    cluster.wait_bound("beside")
    assert cluster.cards_of("beside") == [1]
    clean(cluster)
    print("ok    spec.nodeName: given a card by a guarded patch, the rest of the node stays usable")


def bound_by_another_scheduler(cluster):
    names = ["x", "y", "z"]
    for name in names:
        cluster.add_pod(name, 20, 40, schedulerName="another")
    for name in names[:2]:  # at once: each is counted on both cards until it has its own
        cluster.api.post(f"/api/v1/namespaces/default/pods/{name}/binding",
                         {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": "a"}})
    wait_until(lambda: all(is_adopted(cluster, name) for name in names[:2]), 5, "both are given cards")
    assert sorted(cluster.cards_of("x") + cluster.cards_of("y")) == [0, 1]
    cluster.api.post("/api/v1/namespaces/default/pods/z/binding",
                     {"metadata": {"name": "z"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "a"}})
    reason = "card memory: needs 20 GiB on one card, most free on any card 11 GiB"
    wait_until(lambda: any("without the Sluice scheduler" in text and reason in text for text in cluster.events_of("z")), 5,
               "the third one is told why it waits")
    assert free_units(cluster) == [0, 0], "it is counted on every card"
    said = json.loads(cluster.extender("/explain/default/z"))
    assert said["reason"] == reason, said
    time.sleep(1)
    assert cluster.cards_of("z") is None and len(cluster.events_of("z")) == 1, cluster.events_of("z")
    started = time.monotonic()
    cluster.delete_pod("x")
    wait_until(lambda: is_adopted(cluster, "z"), 5, "it is given the card that became free")
    print(f"ok    bound by another scheduler: cards for two, a reason for the third, its card {time.monotonic() - started:.2f} s "
          "after one became free")
    clean(cluster)


def changed_all_the_time(cluster):
    """The PATCH carries the resourceVersion: a pod that changes under it is looked at again."""
    stopping = threading.Event()

    def change():
        count = 0
        while not stopping.wait(0.01):
            count += 1
            try:
                annotate(cluster, "restless", {"n": str(count)})
            except OSError:
                pass

    cluster.add_pod("restless", 5, 5, nodeName="a")
    thread = threading.Thread(target=change)
    thread.start()
    try:
        wait_until(lambda: is_adopted(cluster, "restless"), 15, "given a card all the same")
    finally:
        stopping.set()
        thread.join()
    clean(cluster)
    print("ok    a pod that changes all the time is given its card")


def runs_already(cluster):
    cluster.stop_sluice()
    cluster.add_pod("runs", 20, 20, nodeName="a")
    cluster.api.patch("/api/v1/namespaces/default/pods/runs/status", {"status": {
        "phase": "Running", "containerStatuses": [{
            "name": "c0", "image": "none", "imageID": "", "ready": True, "restartCount": 0, "containerID": "containerd://1",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}}, "strategic-merge-patch")
    cluster.start_sluice()
    wait_until(lambda: free_units(cluster) == [11, 11], 5, "counted on every card")
    time.sleep(1)
    assert cluster.cards_of("runs") is None, "nobody knows where it runs"
    clean(cluster)
    print("ok    what runs without a record is counted at its worst and given none")


def edited(cluster):
    cluster.add_pod("owner", 20, 50)
    cluster.wait_bound("owner")
    wait_until(lambda: free_units(cluster) == [11, 31], 5, "counted")
    pod = cluster.pod("owner")
    assert authentic(cluster, pod)
    record = pod["metadata"]["annotations"][RECORD]
    forged = json.loads(record)
    forged["cards"][0]["units"] = 1
    other = json.loads(record)
    other["cards"][0].update(index=1, uuid="GPU-a-1")
    for edit in ({RECORD: json.dumps(forged)}, {RECORD: json.dumps(other)}, {RECORD: None}, {SIGNATURE: None},
                 {SIGNATURE: "A" * 88}, {RECORD: "{}"}, {RECORD: "not JSON"}):
        annotate(cluster, "owner", edit)
        wait_until(lambda: free_units(cluster) == [11, 11], 5, f"{edit}: counted on every card")
        assert "sluice_scheduler_untrusted_records 1" in cluster.extender("/metrics")
        time.sleep(0.3)
        assert not authentic(cluster, cluster.pod("owner")), "it was given another record"
        annotate(cluster, "owner", {RECORD: record, SIGNATURE: pod["metadata"]["annotations"][SIGNATURE]})
        wait_until(lambda: free_units(cluster) == [11, 31], 5, "as before once the record is authentic again")
    # Names that other tools read are never believed.
    annotate(cluster, "owner", {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "1",
                                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "scheduler.framework.gpushare.assume-time": "1",
                                "scheduler.framework.gpushare.allocation": '{"0":{"1":1}}'})
    time.sleep(0.3)
    assert free_units(cluster) == [11, 31]
    # Somebody else's record on a pod of one's own, before and after it is bound.
    copied = {RECORD: record, SIGNATURE: pod["metadata"]["annotations"][SIGNATURE]}
    cluster.add_pod("copier", 5, 5, annotations=copied)
    cluster.wait_bound("copier")
    wait_until(lambda: is_adopted(cluster, "copier"), 5, "its own record")
    assert cluster.pod("copier")["metadata"]["annotations"][RECORD] != record
    cluster.add_pod("named", 5, 5, annotations=copied, nodeName="a")
    wait_until(lambda: is_adopted(cluster, "named"), 5, "its own record")
    assert sum(free_units(cluster)) == 62 - 30, free_units(cluster)
    clean(cluster)
    print("ok    forged, edited, copied and removed records free nothing and give nothing")


def main():
    with SluiceCluster() as cluster:
        cluster.add_node("a", 2)
        for part in (bound_by_name, bound_by_another_scheduler, changed_all_the_time, runs_already, edited):
            part(cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
