#!/usr/bin/env python3
"""What people change on pods and nodes besides the mode: an administrator's permission and policy, a pod's own wishes, and
labels and annotations that are edited while the pod runs. Over the kubelet and API server of fake_node.py, scene by scene.
"""
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_node  # noqa: E402

fake_node.prepare()
from fake_node import eventually, refused, serving, share  # noqa: E402


def isolation_switched_off_by_the_pod():
    """CGPU_DISABLE counts where the administrator has allowed it, for the containers that set it, and says so."""
    def pod_with(node, value, **options):
        pod = node.make_pod({"free": (10, 30), "held": (5, 10)}, shown=False, **options)
        pod["spec"]["containers"][0]["env"] = [{"name": "CGPU_DISABLE", "value": value}]
        node.api.put("pods", pod)
        node.kubelet.admit(pod)
        for name in ("free", "held"):
            node.kubelet.start_container(pod, name)
        assert node.grant(pod, "held") == {0: share(5, 10)}
        return pod
    with serving() as node:
        pod = pod_with(node, "true")
        assert node.grant(pod, "free") == {0: share(10, 30)}  # not allowed: as if it were not there
        assert len(node.metrics("sluice_enforced{", "} 1")) == 2, node.metrics("sluice_enforced")
    with serving(options=["--allow-disable"]) as node:
        pod = pod_with(node, "false")
        assert node.grant(pod, "free") == {0: share(10, 30)}
        node.delete_pod(pod)
        node.wait_empty()
        pod = pod_with(node, "true")
        assert node.grant(pod, "free") == {0: (0, 0)}
        # The library stays in: neighbours get their turns by it, and other cards stay hidden.
        paths = [m["containerPath"] for m in node.spec(pod, "free")["mounts"]]
        assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in paths, paths
        labels = 'namespace="team",pod="pod-2",container="free"'
        assert node.metrics("sluice_enforced{", labels)[0].endswith(" 0"), node.metrics("sluice_enforced")
        assert "CGPU_DISABLE" in node.metrics("sluice_not_enforced_info{", labels)[0]
        assert node.metrics("sluice_enforced{", 'container="held"')[0].endswith(" 1")
        # What it asked for is taken all the same.
        assert node.metrics("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED{", labels)[0].endswith(" 0.3")
        assert node.metrics("sluice_card_core_allocated_percent{")[0].endswith(" 40")
        # It stays so when the agent starts anew, and without the permission the next pod is held.
        node.kill_agent()
        node.options = []
        node.start_agent().wait_offered()
        node.kubelet.start_container(pod, "free")
        assert node.grant(pod, "free") == {0: (0, 0)}
        eventually("the reason", lambda: "CGPU_DISABLE" in "".join(node.metrics("sluice_not_enforced_info{", labels)))
        node.delete_pod(pod)
        node.wait_empty()
        assert node.grant(pod_with(node, "1"), "free") == {0: share(10, 30)}


def compute_policy_by_label():
    """Changed under running pods and taken away again; a word that is none changes nothing and is told."""
    fixed, burst, fair = 3, 4, 0

    def label(node, word):
        node.api.label({"sluice.dev/compute-policy": word})

    def in_force(node, pod, policy):
        eventually(f"policy {policy}", lambda: node.policy(pod, "main") == policy)
    with serving() as node:
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        in_force(node, pod, fixed)
        label(node, "burst")
        in_force(node, pod, burst)
        assert node.grant(pod, "main") == {0: share(10, 30)}
        label(node, "fastest")
        said = eventually("event", lambda: node.api.event_texts("SluiceBadPolicy"))
        assert "'fastest' is unknown; expected fair, preemptive" in said[0], said
        in_force(node, pod, fixed)
        label(node, "0")  # by its number; each container 1/20
        in_force(node, pod, fair)
        eventually("a twentieth", lambda: node.grant(pod, "main") == {0: (share(10, 30)[0], 50)})
        # An agent that starts anew has it at once, without the API server too.
        node.kill_agent()
        node.start_agent().wait_offered()
        assert node.policy(pod, "main") == fair
        label(node, None)
        in_force(node, pod, fixed)
        eventually("its own share", lambda: node.grant(pod, "main") == {0: share(10, 30)})
    with serving(options=["--policy", "burst"]) as node:
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        in_force(node, pod, burst)
        label(node, "fixed")
        in_force(node, pod, fixed)
        label(node, None)
        in_force(node, pod, burst)


def labels_and_record_edited_while_the_pod_runs():
    """What a running pod's owner does to its labels and annotations stops no restart of its containers and changes
    nothing of what they hold; the next start of the agent does not either. A pod that has nothing yet gets nothing."""
    def edit(node, pod, labels=None, annotations=None):
        changed = json.loads(json.dumps(node.api.objects["pods"][pod["metadata"]["uid"]]))
        changed["metadata"]["labels"].update(labels or {})
        for key, value in (annotations or {}).items():
            if value is None:
                del changed["metadata"]["annotations"][key]
            else:
                changed["metadata"]["annotations"][key] = value
        node.api.put("pods", changed)
        time.sleep(0.2)
    record, signature = "sluice.dev/allocation", "sluice.dev/signature"
    with serving(cards=4) as node:
        one = node.make_pod({"main": (10, 30), "late": (4, 10)}, card=0)
        two = node.make_pod({"main": (20, 120)}, card=[1, 3])
        node.run(one, "main")
        node.run(two, "main")
        forged = one["metadata"]["annotations"][record].replace('"core_milli": 300', '"core_milli": 900')
        edits = [{"labels": {"aliyun.com/gpu-count": "2"}}, {"labels": {"aliyun.com/gpu-count": "nonsense"}},
                 {"labels": {"aliyun.com/gpu-count": "7"}}, {"annotations": {record: forged}}, {"annotations": {signature: None}},
                 {"annotations": {record: None}}]
        for number, change in enumerate(edits):
            for pod, had in ((one, {0: share(10, 30)}), (two, {1: share(10, 60), 3: share(10, 60)})):
                edit(node, pod, **change)
                node.kubelet.start_container(pod, "main")
                assert node.grant(pod, "main") == had, (change, node.grant(pod, "main"))
            if number % 2:
                node.kill_agent()
                node.start_agent().wait_offered(4 * 31, 400)
        assert any("keeps the cards" in text for text in node.api.event_texts("SluiceAllocationChanged"))
        # A container of it that has not run yet gets what was signed.
        node.kubelet.start_container(one, "late")
        assert node.grant(one, "late") == {0: share(4, 10)}
        # After a reboot there is nothing but what lies on disk.
        before = node.spec(two, "main")
        node.reboot()
        node.wait_offered(4 * 31, 400)
        node.kubelet.start_container(two, "main")
        assert node.spec(two, "main") == before and node.grant(two, "main") == {1: share(10, 60), 3: share(10, 60)}
        for pod in (one, two):
            node.delete_pod(pod)
        node.wait_empty()
        new = node.make_pod({"main": (5, 10)}, card=2)
        edit(node, new, annotations={record: forged})
        node.kubelet.admit(new)
        refused(node, new, "main", "not signed")
        assert not node.grants()


fake_node.play([isolation_switched_off_by_the_pod, compute_policy_by_label, labels_and_record_edited_while_the_pod_runs])
