#!/usr/bin/env python3
"""The agent of a Kubernetes node against a kubelet of our own: registration, slots and owners, restarts, health, modes.
Each function is a scene with a node of its own; names on the command line choose some of them."""
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_node  # noqa: E402

fake_node.prepare()
from fake_node import CORE, MEMORY, WHOLE, Node, eventually, refused, serving, share  # noqa: E402


def registers_and_describes_the_node():
    with serving() as node:
        eventually("mode on the node", lambda: node.api.node()["metadata"]["annotations"].get("sluice.dev/mode")
                   == "core_mem")
        eventually("capacity", lambda: node.api.node()["status"]["capacity"].get("aliyun.com/gpu-count") == "1")
        eventually("conditions", lambda: node.api.condition("SluiceModeSettled"))
        facts = node.api.node()
        labels = facts["metadata"]["labels"]
        assert labels["aliyun.accelerator/nvidia_name"] == "Tesla-V100-SXM2-32GB", labels
        assert labels["aliyun.accelerator/nvidia_mem"] == "32510MiB" and labels["aliyun.accelerator/nvidia_count"] == "1"
        card, = node.cards()
        assert card["memory_mib"] == 32510 and card["units"] == 31 and card["healthy"] is True, card
        for kind in ("SluiceCardsHealthy", "SluiceEnforcing", "SluiceModeSettled"):
            assert node.api.condition(kind)["status"] == "True", node.api.condition(kind)
        assert all(o.pre_start_required for o in node.kubelet.options.values())
        # Both back to back, and nothing is patched again when nothing changes.
        times = [t for t, _, _ in node.kubelet.registrations]
        assert len(times) == 2 and times[1] - times[0] < 0.5, times
        before = len(node.api.patches)
        time.sleep(2.5)
        assert len(node.api.patches) == before, node.api.patches[before:]


def a_pod_gets_what_its_allocation_says():
    with serving(cards=2) as node:
        pod = node.make_pod({"main": (10, 30)}, card=1)
        node.kubelet.admit(pod)
        answer = node.kubelet.answers[(pod["metadata"]["uid"], "main", CORE)]
        assert not answer.cdi_devices and not answer.envs and not answer.mounts
        # Before PreStart the spec is there and names no card.
        edits = node.spec(pod, "main")
        assert "env" not in edits and not os.path.exists(edits["mounts"][0]["hostPath"])
        node.kubelet.start_container(pod, "main")
        assert node.grant(pod, "main") == {1: share(10, 30)}, node.grant(pod, "main")
        environment = node.environment(pod, "main")
        assert environment["NVIDIA_VISIBLE_DEVICES"] == node.cards()[1]["uuid"]
        assert environment["ALIYUN_COM_GPU_MEM_DEV"] == "31" and environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "10"
        assert environment["ALIYUN_COM_GPU_MEM_IDX"] == "1" and environment["ALIYUN_COM_GPU_MEM_POD"] == "10"
        mounts = {m["containerPath"]: m for m in node.spec(pod, "main")["mounts"]}
        assert "ro" in mounts["/run/sluice/container/grant"]["options"]
        assert "rw" in mounts["/run/sluice/container/usage"]["options"]
        for path in ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libnvidia-ml.so.1", "/usr/lib/libcuda.so"):
            assert mounts[path]["hostPath"].startswith(f"{node.folder}/state/lib/"), mounts[path]
            assert os.path.isfile(mounts[path]["hostPath"])
        for mount in mounts.values():
            assert os.path.exists(mount["hostPath"]), mount
        # Again and again, as before every start of the container.
        files = (node.grants(), node.slots(), node.specs())
        for _ in range(3):
            node.kubelet.start_container(pod, "main")
        assert (node.grants(), node.slots(), node.specs()) == files
        node.delete_pod(pod)
        node.wait_empty()


def many_equal_pods_at_once():
    with serving(cards=8) as node:
        pods = [node.make_pod({"main": (5, 10)}, card=i % 8) for i in range(48)]
        for pod in pods:
            node.kubelet.admit(pod)
        failures = []

        def start(pod):
            try:
                node.kubelet.start_container(pod, "main")
            except Exception as error:  # noqa: BLE001
                failures.append(error)
        threads = [threading.Thread(target=start, args=(pod,)) for pod in pods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        for i, pod in enumerate(pods):
            assert node.grant(pod, "main") == {i % 8: share(5, 10)}, (i, node.grant(pod, "main"))
            assert node.environment(pod, "main")["NVIDIA_VISIBLE_DEVICES"] == node.cards()[i % 8]["uuid"]
        assert len(set(node.kubelet.cdi_device(p, "main") for p in pods)) == len(pods)
        assert node.kubelet.lists_asked == 0
        for pod in pods:
            node.delete_pod(pod)
        node.wait_empty()


def kubelet_without_get():
    with serving(has_get=False, version="v1.31.14") as node:
        pods = [node.make_pod({"main": (3, 10)}) for _ in range(5)]
        for pod in pods:
            node.kubelet.admit(pod)
        for pod in pods:
            node.kubelet.start_container(pod, "main")
            assert node.grant(pod, "main") == {0: share(3, 10)}
        assert node.kubelet.lists_asked > 0


def same_ids_recorded_for_two_pods():
    with serving() as node:
        first, second = node.make_pod({"main": (4, 10)}), node.make_pod({"main": (4, 10)})
        node.kubelet.admit(first)
        node.kubelet.admit(second, twice={MEMORY: node.kubelet.taken[(first["metadata"]["uid"], "main", MEMORY)]})
        refused(node, second, "main", "same device ids")
        # One of them goes: the other starts with its own grant.
        node.delete_pod(first)
        node.kubelet.start_container(second, "main")
        assert node.grant(second, "main") == {0: share(4, 10)}


def containers_of_one_pod():
    with serving() as node:
        pod = node.make_pod({"a": (6, 20), "b": (6, 20), "c": (3, 5), "plain": (0, 0)})
        node.kubelet.admit(pod)
        for name in ("c", "a", "b"):
            node.kubelet.start_container(pod, name)
        assert node.grant(pod, "a") == node.grant(pod, "b") == {0: share(6, 20)}
        assert node.grant(pod, "c") == {0: share(3, 5)}
        assert node.environment(pod, "c")["ALIYUN_COM_GPU_MEM_POD"] == "15"
        assert len(node.grants()) == 3


def several_cards():
    with serving(cards=4) as node:
        pod = node.make_pod({"main": (20, 40)}, card=[1, 3])
        node.run(pod, "main")
        assert node.grant(pod, "main") == {1: share(10, 20), 3: share(10, 20)}
        assert node.environment(pod, "main")["ALIYUN_COM_GPU_MEM_IDX"] == "1,3"


def init_containers_share_the_pods_charge():
    with serving() as node:
        # 25 and 25 of 31 units: only one of the two may be charged at a time.
        pod = node.make_pod({"main": (25, 50)}, init={"prepare": (25, 50), "more": (20, 30)})
        node.run(pod, "prepare")
        assert node.grant(pod, "prepare") == {0: share(25, 50)}
        node.set_status(pod, states={"prepare": {"terminated": {"exitCode": 0}}})
        node.kubelet.start_container(pod, "more")
        assert node.grant(pod, "more") == {0: share(20, 30)}
        node.set_status(pod, states={"more": {"terminated": {"exitCode": 0}}})
        node.kubelet.start_container(pod, "main")
        assert node.grant(pod, "main") == {0: share(25, 50)}
        # Only an init container asks: its ids are in nobody's record.
        alone = node.make_pod({"plain": (0, 0)}, init={"prepare": (5, 10)})
        node.run(alone, "prepare")
        assert node.grant(alone, "prepare") == {0: share(5, 10)}


def equal_init_container_with_other_compute():
    with serving() as node:
        pod = node.make_pod({"main": (10, 50)}, init={"prepare": (10, 20)})
        node.run(pod, "prepare")
        assert node.grant(pod, "prepare") == {0: share(10, 20)}
        node.set_status(pod, states={"prepare": {"terminated": {"exitCode": 0}}})

        def main_has_its_own():
            node.kubelet.start_container(pod, "main")
            try:
                return node.grant(pod, "main") == {0: share(10, 50)}
            except FileNotFoundError:  # the runtime would refuse, and the kubelet try again
                return False
        eventually("the main container's own share", main_has_its_own)


def in_background(call, *arguments):
    """Runs the call in a thread; returns a function that waits for it and passes its error on."""
    errors = []

    def body():
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001
            errors.append(error)
    thread = threading.Thread(target=body)
    thread.start()

    def end():
        thread.join()
        if errors:
            raise errors[0]
    return end


def a_pod_that_the_watch_does_not_have_yet():
    """Another pod of the same shape is there and would fit; it is not taken for the one that starts."""
    for shape in ({"containers": {"plain": (0, 0)}, "init": {"first": (4, 10)}}, {"containers": {"main": (4, 10)}}):
        with serving(cards=2) as node:
            seen = node.make_pod({"plain": (0, 0)}, init={"first": (4, 30)}, card=0)
            node.kubelet.admit(seen)
            late = node.make_pod(**shape, card=1, shown=False)
            node.kubelet.admit(late)
            name = next(iter(shape.get("init", shape["containers"])))
            started = in_background(node.kubelet.start_container, late, name)
            time.sleep(2.5)
            assert not node.grants(), node.grants()
            node.api.put("pods", late)
            started()
            node.kubelet.start_container(seen, "first")
            assert node.grant(late, name) == {1: share(4, 10)}
            assert node.grant(seen, "first") == {0: share(4, 30)}


def a_new_pod_of_an_old_name():
    """The kubelet's record knows names; the pod of that name in the watch is the one before."""
    with serving(cards=2) as node:
        before = node.make_pod({"main": (4, 10)}, name="web-0", card=0)
        node.run(before, "main")
        node.kubelet.forget(before)
        now = node.make_pod({"main": (4, 30)}, name="web-0", card=1, shown=False)
        node.kubelet.admit(now)
        started = in_background(node.kubelet.start_container, now, "main")
        time.sleep(1)
        assert len(node.grants()) == 1, node.grants()
        node.delete_pod(before) if before["metadata"]["uid"] in node.api.objects["pods"] else None
        node.kubelet.records[("team", "web-0")] = {"main": {r: ids for (u, _, r), ids in node.kubelet.taken.items()
                                                            if u == now["metadata"]["uid"]}}
        node.api.put("pods", now)
        started()
        assert node.grant(now, "main") == {1: share(4, 30)}


def without_a_checkpoint_by_elimination():
    """Nothing tells whose an init container is but that nobody else can be meant; when that was wrong, the pod that the
    kubelet's record names takes its slot back."""
    with serving(cards=2, has_checkpoint=False) as node:
        late = node.make_pod({"main": (4, 10)}, init={"first": (4, 10)}, card=1, shown=False)
        node.kubelet.admit(late)
        # Recorded for a pod that is not in the watch: no guess.
        refused_late = in_background(node.kubelet.start_container, late, "main")
        seen = node.make_pod({"plain": (0, 0)}, init={"first": (4, 10)}, card=0)
        time.sleep(2.5)
        assert not node.grants(), node.grants()
        # The record is silent too, a fault: one pod alone can be meant, which is believed after a while.
        record = node.kubelet.records.pop(("team", late["metadata"]["name"]))
        began = time.monotonic()
        refused_late()
        assert time.monotonic() - began < 5
        assert node.grant(late, "main") == {0: share(4, 10)}
        # The record is right again and the watch has the pod: it gets its own, and what the other got is its own again.
        node.kubelet.records[("team", late["metadata"]["name"])] = record
        node.api.put("pods", late)
        node.set_status(late, states={"first": {"terminated": {"exitCode": 0}}})
        eventually("its own", lambda: node.kubelet.start_container(late, "main") is None and
                   node.grant(late, "main") == {1: share(4, 10)})
        node.run(seen, "first")
        assert node.grant(seen, "first") == {0: share(4, 10)}
        assert node.grant(late, "main") == {1: share(4, 10)}
        node.delete_pod(seen)
        node.delete_pod(late)
        node.wait_empty()


def wrong_records_give_no_card():
    with serving() as node:
        other = node.make_pod({"main": (5, 10)})
        forged = node.make_pod({"main": (5, 10)})
        text = forged["metadata"]["annotations"]["sluice.dev/allocation"]
        forged["metadata"]["annotations"]["sluice.dev/allocation"] = text.replace('"core_milli": 100', '"core_milli": 900')
        node.api.put("pods", forged)
        node.kubelet.admit(forged)
        refused(node, forged, "main", "not signed")
        # Somebody else's record, signed for another pod.
        copied = node.make_pod({"main": (5, 10)}, allocation=None)
        copied["metadata"]["annotations"] = dict(other["metadata"]["annotations"])
        node.api.put("pods", copied)
        node.kubelet.admit(copied)
        refused(node, copied, "main", "not signed")
        # More than the card has, by a record that is signed: the second guard.
        for pod in (node.make_pod({"main": (20, 10)}), node.make_pod({"main": (11, 10)})):
            node.kubelet.admit(pod) if pod["metadata"]["name"].endswith("4") else None
        assert not node.grants(), node.grants()
        eventually("events", lambda: len(node.api.event_texts("SluiceNoAllocation")) == 2)


def a_card_is_never_given_twice():
    with serving(cards=2) as node:
        first = node.make_pod({"main": (20, 60)}, card=0)
        second = node.make_pod({"main": (20, 30)}, card=0)  # the ids of card 1 let it through the kubelet
        node.kubelet.admit(first)
        node.kubelet.admit(second)
        node.kubelet.start_container(first, "main")
        refused(node, second, "main", "card memory")
        eventually("an event", lambda: any("card memory" in t for t in node.api.event_texts("SluiceCardRefused")))
        # It starts as soon as the other has gone, on the kubelet's next try.
        node.delete_pod(first)
        node.kubelet.start_container(second, "main")
        assert node.grant(second, "main") == {0: share(20, 30)}


def bound_without_the_scheduler():
    with serving() as node:
        pod = node.make_pod({"main": (10, 30)}, allocation=None)
        node.kubelet.admit(pod)
        refused(node, pod, "main", "without Sluice's scheduler")
        node.sign(pod, node.cards(), {"main": (10, 30)})
        node.api.put("pods", pod)
        node.kubelet.start_container(pod, "main")
        assert node.grant(pod, "main") == {0: share(10, 30)}


def agent_killed_and_back():
    with serving() as node:
        running, waiting = node.make_pod({"main": (10, 30)}), node.make_pod({"main": (5, 10)})
        node.run(running, "main")
        node.kubelet.admit(waiting)
        gone = node.make_pod({"main": (3, 5)})
        node.run(gone, "main")
        spec = node.spec(running, "main")
        node.kill_agent()
        eventually("all unhealthy", lambda: node.kubelet.allocatable(MEMORY) == 0)
        node.delete_pod(gone)
        node.start_agent().wait_offered()
        assert node.spec(running, "main") == spec and node.grant(running, "main") == {0: share(10, 30)}
        node.kubelet.start_container(waiting, "main")
        node.kubelet.start_container(running, "main")
        assert node.grant(waiting, "main") == {0: share(5, 10)}
        eventually("the third's are gone", lambda: len(node.grants()) == 2 and len(node.slots()) == 4)


def a_full_disk_under_the_state_directory():
    """What runs goes on, nothing is lost, one line names the directory, and who came meanwhile starts when there is room."""
    if os.geteuid() != 0:
        print("left out: a small file system needs root")
        return
    with Node() as node:
        state = f"{node.folder}/state"
        os.makedirs(state)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0755", "small", state], check=True)
        node.start_agent().wait_offered()
        running = node.make_pod({"main": (10, 30)})
        node.run(running, "main")
        filler = os.open(f"{state}/filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def fill():
            try:
                while True:
                    os.write(filler, bytes(4096))
            except OSError:
                pass
        fill()
        full = ("event=no-room", state)
        eventually("a line about it", lambda: node.log_lines(*full))
        fill()  # the last pages that another processor had set aside
        for workers in (1, 2):
            node.kubelet.start_container(running, "main")
            assert node.grant(running, "main") == {0: share(10, 30)}
            node.kill_worker()
            eventually("the next worker takes the grant over", lambda: len(node.log_lines("grant taken over")) == workers)
            node.wait_offered()
        eventually("once by each worker", lambda: len(node.log_lines(*full)) == 3)
        fill()
        waiting = node.make_pod({"main": (5, 10)})
        node.kubelet.admit(waiting)  # not failed: the kubelet would not try again
        eventually("an event", lambda: node.api.event_texts("SluiceSlotNotKept"))
        refused(node, waiting, "main", "No space left on device")
        node.kubelet.start_container(running, "main")
        assert len(node.log_lines(*full)) == 3, "no more than once by each worker"
        os.ftruncate(filler, 0)
        os.close(filler)
        eventually("room again", lambda: node.log_lines("event=room-again", state))

        def starts():
            try:
                node.kubelet.start_container(waiting, "main")
                return node.grant(waiting, "main") == {0: share(5, 10)}
            except Exception:  # noqa: BLE001
                return False
        eventually("the pod that came meanwhile has its share", starts, 30.0)
        node.delete_pod(running)
        node.delete_pod(waiting)
        node.wait_empty()


def worker_killed_under_a_stream_of_pods():
    """The kubelet keeps its stream and its list, and every call is answered, late at worst."""
    with serving(cards=4) as node:
        registered = len(node.kubelet.registrations)
        running = node.make_pod({"main": (10, 30)})
        node.run(running, "main")
        ended, waits = threading.Event(), []

        def stream():
            number = 0
            while not ended.is_set():
                number += 1
                pod = node.make_pod({"main": (3, 10)}, card=1 + number % 3)
                began = time.monotonic()
                node.run(pod, "main")
                waits.append(time.monotonic() - began)
                assert node.grant(pod, "main") == {1 + number % 3: share(3, 10)}
                assert node.kubelet.allocatable(MEMORY) == 124 and node.kubelet.allocatable(CORE) == 400
                node.delete_pod(pod)
        finish = in_background(stream)
        killed = set()
        for _ in range(4):
            time.sleep(1)
            killed.add(node.kill_worker())
        time.sleep(2)
        ended.set()
        finish()
        assert len(killed) == 4 and node.worker() not in killed
        assert len(node.kubelet.registrations) == registered, node.kubelet.registrations
        assert node.grant(running, "main") == {0: share(10, 30)}
        eventually("the stream's are gone", lambda: len(node.grants()) == 1 and len(node.slots()) == 2)
        print(f"  {len(waits)} pods, 4 kills; the slowest pod waited {max(waits):.2f} s, the median {sorted(waits)[len(waits) // 2]:.3f} s")


def worker_that_dies_again_and_again():
    with serving() as node:
        for _ in range(20):
            if node.agent.poll() is not None:
                break
            try:
                node.kill_worker()
            except (AssertionError, ProcessLookupError):
                pass
            time.sleep(0.05)
        assert node.agent.wait(20) == 128 + 9, node.agent.returncode
        eventually("all unhealthy", lambda: node.kubelet.allocatable(MEMORY) == 0)
        node.start_agent().wait_offered()


def front_killed_alone():
    with serving() as node:
        worker = node.worker()
        node.agent.kill()
        node.agent.wait()
        eventually("the worker ends too", lambda: not os.path.exists(f"/proc/{worker}"))
        eventually("all unhealthy", lambda: node.kubelet.allocatable(MEMORY) == 0)
        node.start_agent().wait_offered()


def agent_ends_politely():
    with serving() as node:
        eventually("mode", lambda: node.api.node()["metadata"]["annotations"].get("sluice.dev/mode") == "core_mem")
        node.kill_agent(signal=15)
        assert node.agent.returncode == 0
        # The scheduler was told before the kubelet was.
        assert node.api.node()["metadata"]["annotations"]["sluice.dev/mode"] == "waiting"
        node.start_agent().wait_offered()
        eventually("mode", lambda: node.api.node()["metadata"]["annotations"]["sluice.dev/mode"] == "core_mem")


def kubelet_restarts():
    with serving() as node:
        pod = node.make_pod({"main": (10, 30)})
        node.kubelet.admit(pod)
        for _ in range(2):
            names = {name for _, _, name in node.kubelet.registrations}
            node.kubelet.stop()
            node.kubelet.start()
            began = time.monotonic()
            node.wait_offered()
            fresh = [r for r in node.kubelet.registrations if r[2] not in names]
            assert {r[1] for r in fresh} == {MEMORY, CORE}, fresh
            print(f"  registered again after {max(r[0] for r in fresh) - began:.3f} s")
        node.kubelet.start_container(pod, "main")
        assert node.grant(pod, "main") == {0: share(10, 30)}


def node_reboots():
    with serving() as node:
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        before = node.spec(pod, "main")
        node.reboot().wait_offered()
        node.kubelet.start_container(pod, "main")
        assert node.spec(pod, "main") == before
        assert node.grant(pod, "main") == {0: share(10, 30)}


def a_driver_that_comes_after_the_agent():
    """Waited for, without an end of the container; asked to end meanwhile, it ends."""
    import shutil
    with fake_node.Node() as node:
        os.rename(node.driver, f"{node.folder}/later")
        os.makedirs(node.driver)
        node.start_agent()
        eventually("it says so", lambda: node.log_lines("no driver under", "neither there"))
        node.agent.send_signal(15)
        node.agent.wait(30)
        node.start_agent()
        for name in sorted(os.listdir(f"{node.folder}/later")):  # the libraries first, the cards' own files last
            shutil.move(f"{node.folder}/later/{name}", node.driver)
            time.sleep(0.4)
        node.wait_offered(seconds=30)
        assert len(node.log_lines("level=error")) <= 12, node.log_lines("level=error")


def a_sick_card_keeps_what_is_held():
    import subprocess
    with serving(cards=2) as node:
        pod = node.make_pod({"main": (10, 30)}, card=0)
        node.run(pod, "main")
        sim = [f"{fake_node.BUILD}/bin/sluice-sim", "fault", f"{node.driver}/state/card0"]
        subprocess.run([*sim, "error", "nvmlDeviceGetMemoryInfo", "15"], check=True)  # the GPU is lost
        # Free units of card 0 are taken away, the ten that are held stay: 31 - 10 of 62 and 100 - 30 of 200.
        node.wait_offered(62 - 21, 200 - 70)
        held = node.kubelet.taken[(pod["metadata"]["uid"], "main", MEMORY)]
        assert all(node.kubelet.lists[MEMORY][i] == "Healthy" for i in held)
        eventually("condition", lambda: node.api.condition("SluiceCardsHealthy")["status"] == "False")
        assert [c["healthy"] for c in node.cards()] == [False, True]
        eventually("event", lambda: node.api.event_texts("SluiceCardLost"))
        node.kubelet.start_container(pod, "main")  # a restart of its container is let through
        subprocess.run([*sim, "clear"], check=True)
        node.wait_offered(62, 200)
        eventually("condition", lambda: node.api.condition("SluiceCardsHealthy")["status"] == "True")
        # Exchanged for another: what the pod holds of the old one is still counted, then the old one is forgotten.
        subprocess.run([*sim, "lost"], check=True)
        node.wait_offered(62 - 21, 200 - 70)
        old = node.cards()[0]["uuid"]
        subprocess.run([*sim, "back"], check=True)
        node.wait_offered(62 + 10, 200 + 30)
        node.delete_pod(pod)
        node.wait_offered(62, 200)
        eventually("two cards", lambda: [c["healthy"] for c in node.cards()] == [True, True])
        assert old not in [c["uuid"] for c in node.cards()]
        fresh = node.make_pod({"main": (31, 100)}, card=1)
        node.run(fresh, "main")
        assert list(node.grant(fresh, "main").values()) == [(32510, 0)], node.grant(fresh, "main")


def a_card_that_cannot_be_limited_is_not_offered():
    """In exclusive-process mode one program has the card: said by a condition, and taken back when the mode is."""
    import subprocess
    with serving(cards=2) as node:
        sim = [f"{fake_node.BUILD}/bin/sluice-sim", "set", f"{node.driver}/state/card0"]
        subprocess.run([*sim, "exclusive_process=1"], check=True, stdout=subprocess.DEVNULL)
        node.wait_offered(31, 100)
        condition = eventually("condition", lambda: (lambda c: c if c["status"] == "False" else None)(node.api.condition("SluiceEnforcing")))
        assert condition["reason"] == "ExclusiveProcessMode" and "card 0" in condition["message"], condition
        assert [c["healthy"] for c in node.cards()] == [False, True]
        subprocess.run([*sim, "exclusive_process=0"], check=True, stdout=subprocess.DEVNULL)
        node.wait_offered(62, 200)
        eventually("condition", lambda: node.api.condition("SluiceEnforcing")["status"] == "True")


def modes_change_while_pods_run():
    mode = "ack_node_gpu_schedule".replace("_", ".")
    with serving(options=["--whole-cards"]) as node:
        eventually("the empty list", lambda: WHOLE in node.kubelet.lists)
        assert node.kubelet.lists[WHOLE] == {}
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        eventually("mode", lambda: node.api.node()["metadata"]["annotations"].get("sluice.dev/mode") == "core_mem")
        node.api.label(**{mode.replace(".", "_"): "cgpu"})
        # The old mode stays for the pod, nothing free is offered, and the scheduler reads it at once.
        node.wait_offered(10, 30)
        eventually("annotation", lambda: node.api.node()["metadata"]["annotations"]["sluice.dev/mode"] == "waiting")
        waiting = eventually("condition", lambda: node.api.condition("SluiceModeSettled")["status"] == "False" and
                             node.api.condition("SluiceModeSettled"))
        assert "team/pod-1" in waiting["message"], waiting
        eventually("event", lambda: any("team/pod-1" in t for t in node.api.event_texts("SluiceModeWaiting")))
        node.kubelet.start_container(pod, "main")
        node.set_status(pod, phase="Succeeded")
        eventually("memory only", lambda: node.kubelet.allocatable(MEMORY) == 31 and CORE not in node.kubelet.plugins)
        eventually("mode", lambda: node.api.node()["metadata"]["annotations"].get("sluice.dev/mode") == "cgpu")
        node.kubelet.forget(pod)
        alone = node.make_pod({"main": (10, 0)})
        node.run(alone, "main")
        assert node.grant(alone, "main") == {0: share(10, 0)}
        # Back before it went: nothing has happened.
        node.api.label(**{mode.replace(".", "_"): "default"})
        eventually("annotation", lambda: node.api.node()["metadata"]["annotations"]["sluice.dev/mode"] == "waiting")
        node.api.label(**{mode.replace(".", "_"): "cgpu"})
        eventually("mode", lambda: node.api.node()["metadata"]["annotations"].get("sluice.dev/mode") == "cgpu")
        # To whole cards: our marks on the node vanish.
        node.api.label(**{mode.replace(".", "_"): None})
        node.delete_pod(alone)
        eventually("a whole card", lambda: node.kubelet.allocatable(WHOLE) == 1 and MEMORY not in node.kubelet.plugins)
        eventually("a clean node", lambda: "sluice.dev/mode" not in node.api.node()["metadata"]["annotations"] and
                   "aliyun.accelerator/nvidia_name" not in node.api.node()["metadata"]["labels"] and
                   "aliyun.com/gpu-count" not in node.api.node()["status"]["capacity"] and
                   not node.api.node()["status"]["conditions"])


def unknown_modes_say_so():
    with Node(mode="mps").start_agent() as node:
        condition = eventually("condition", lambda: node.api.condition("SluiceModeSettled"))
        assert condition["status"] == "False" and "mps" in condition["message"]
        assert not node.kubelet.plugins


def whole_cards():
    with Node(cards=2, mode=None, options=["--whole-cards"]).start_agent() as node:
        eventually("two cards", lambda: node.kubelet.allocatable(WHOLE) == 2)
        uuid = sorted(node.kubelet.lists[WHOLE])[0]
        pod = {"metadata": {"name": "whole", "namespace": "team", "uid": "00000000-0000-4000-8000-00000000000a",
                            "annotations": {}, "labels": {}, "creationTimestamp": "2026-01-01T00:00:00Z"},
               "spec": {"nodeName": "node-a", "initContainers": [],
                        "containers": [{"name": "main", "resources": {"limits": {WHOLE: "1"}}}]},
               "status": {"phase": "Pending"}}
        node.api.put("pods", pod)
        node.kubelet.admit(pod)
        uuid = node.kubelet.taken[(pod["metadata"]["uid"], "main", WHOLE)][0]
        node.kubelet.start_container(pod, "main")
        environment = node.environment(pod, "main", WHOLE)
        assert environment["NVIDIA_VISIBLE_DEVICES"] == uuid and "ALIYUN_COM_GPU_MEM_DEV" not in environment
        assert list(node.grant(pod, "main", WHOLE).values()) == [(0, 0)]  # no limits, one card


def another_plugin_has_the_whole_cards():
    node = Node(options=["--whole-cards"])
    node.api.node()["status"]["allocatable"][WHOLE] = "1"
    with node.start_agent():
        node.wait_offered()
        time.sleep(1)
        assert WHOLE not in node.kubelet.plugins
        eventually("event", lambda: node.api.event_texts("SluiceWholeCardsTaken"))


def others_who_give_out_the_cards():
    """Said in the node's condition; pods with grants go on."""
    def enforcing(node, reason):
        condition = eventually(reason, lambda: (node.api.condition("SluiceEnforcing") or {}).get("reason") == reason and
                               node.api.condition("SluiceEnforcing"))
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        assert node.grant(pod, "main") == {0: share(10, 30)}
        return condition
    node = Node()
    node.api.node()["status"]["allocatable"][WHOLE] = "2"
    with node.start_agent():
        node.wait_offered()
        said = enforcing(node, "OtherDevicePlugin")
        assert said["status"] == "False" and "offers 2 nvidia.com/gpu" in said["message"], said
        changed = fake_node.json.loads(fake_node.json.dumps(node.api.node()))
        changed["status"]["allocatable"][WHOLE] = "0"
        node.api.put("nodes", changed)
        eventually("all is well", lambda: node.api.condition("SluiceEnforcing")["status"] == "True")
    node = Node()
    node.api.objects["resourceslices"] = {"s": {"metadata": {"name": "node-a-gpus"}, "spec": {
        "driver": "gpu.nvidia.com", "nodeName": "node-a", "devices": [{"name": "gpu-0"}]}}}
    with node.start_agent():
        node.wait_offered()
        said = enforcing(node, "CardsClaimedByDra")
        assert "gpu.nvidia.com publishes 1 devices of this node (ResourceSlice node-a-gpus)" in said["message"], said
    node = Node()
    node.api.objects.update(resourceslices={}, deviceclasses={"c": {"metadata": {"name": "units"}, "spec": {
        "extendedResourceName": MEMORY}}})
    with node.start_agent():
        node.wait_offered()
        said = enforcing(node, "NameClaimedByDra")
        assert said["message"].startswith("DeviceClass units stands for aliyun.com/gpu-mem"), said


def share_mode_sets_no_limit():
    with Node(mode="share", cards=2).start_agent() as node:
        eventually("units", lambda: node.kubelet.allocatable(MEMORY) == 62)
        eventually("cards", lambda: "sluice.dev/cards" in node.api.node()["metadata"]["annotations"])
        pod = node.make_pod({"main": (10, 0)}, card=1)
        node.run(pod, "main")
        assert node.grant(pod, "main") == {1: (0, 0)}
        assert node.environment(pod, "main")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "10"
        assert node.api.condition("SluiceEnforcing")["status"] == "False"


def delivery_by_environment():
    with Node(options=["--delivery", "env"], version="v1.27.3", runtime="containerd://1.6.20", has_get=False
              ).start_agent() as node:
        node.wait_offered()
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        answer = node.kubelet.answers[(pod["metadata"]["uid"], "main", MEMORY)]
        assert not answer.cdi_devices
        mounts = {m.container_path: m for m in answer.mounts}
        with open(mounts["/run/sluice/container/grant"].host_path + "/page", "rb") as file:
            assert fake_node.read_page(file.read()) == {0: share(10, 30)}
        assert mounts["/run/sluice/container/grant"].read_only and not mounts["/run/sluice/container/usage"].read_only
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == node.cards()[0]["uuid"], answer.envs


def old_runtime_with_cdi_says_so():
    with Node(runtime="containerd://1.6.20").start_agent() as node:
        condition = eventually("condition", lambda: node.api.condition("SluiceEnforcing"))
        assert condition["status"] == "False" and condition["reason"] == "CdiOff", condition


def an_agent_without_the_api_server_offers_again():
    with serving() as node:
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        node.kill_agent()
        url = node.api.url
        with open(f"{node.folder}/kubeconfig") as file:
            text = file.read()
        with open(f"{node.folder}/kubeconfig", "w") as file:
            file.write(text.replace(url, "http://127.0.0.1:9"))
        eventually("all unhealthy", lambda: node.kubelet.allocatable(MEMORY) == 0)
        node.start_agent().wait_offered()
        assert node.grant(pod, "main") == {0: share(10, 30)}


def clean_up_leaves_nothing():
    import subprocess
    with serving() as node:
        pod = node.make_pod({"main": (10, 30)})
        node.run(pod, "main")
        eventually("labels", lambda: "aliyun.accelerator/nvidia_name" in node.api.node()["metadata"]["labels"])
        node.kill_agent()
        node.options = ["--clean-up"]
        node.start_agent()
        eventually("the pod's name", lambda: "team/pod-1" in open(node.log).read().split("hold shares")[-1])
        assert node.grant(pod, "main") == {0: share(10, 30)}  # it is left alone
        node.delete_pod(pod)
        eventually("nothing left", lambda: os.listdir(f"{node.folder}/run") == os.listdir(f"{node.folder}/state") ==
                   node.specs() == [])
        face = node.api.node()
        assert face["metadata"]["annotations"] == {} and list(face["metadata"]["labels"]) == ["ack.node.gpu.schedule"]
        assert face["status"]["conditions"] == [] and face["status"]["capacity"] == {}
        # What is mounted at the folder itself stays: in a pod it is the node's own.
        mounts = subprocess.run(["grep", f"{node.folder}/run/", "/proc/self/mounts"], stdout=subprocess.PIPE,
                                check=False).stdout
        assert mounts == b"", mounts
        node.kill_agent(signal=15)
        assert node.agent.returncode == 0


def churn():
    """Pods of every shape come and go while agent and kubelet are killed now and then: each container's grant is what
    its pod's allocation says, nothing is left at the end."""
    seed = int(os.environ.get("SLUICE_SEED", "1"))
    draw = random.Random(seed)
    with Node(cards=4).start_agent() as node:
        total = 4 * 31
        node.wait_offered(total, 400)
        free = [[31, 100] for _ in range(4)]
        alive = []  # (pod, card, need, {container: (units, percent)}, started names)

        def create():
            shape = {f"c{i}": (draw.randint(1, 6), draw.choice([5, 10, 15])) for i in range(draw.choice([1, 1, 1, 2, 3]))}
            init = {"init": (draw.randint(1, 8), draw.choice([5, 10]))} if draw.random() < 0.3 else {}
            need = [max([sum(v[i] for v in shape.values())] + [v[i] for v in init.values()]) for i in (0, 1)]
            fits = [c for c in range(4) if free[c][0] >= need[0] and free[c][1] >= need[1]]
            if not fits:
                return
            card = draw.choice(fits)
            free[card][0] -= need[0]
            free[card][1] -= need[1]
            pod = node.make_pod(shape, init=init, card=card)
            node.kubelet.admit(pod)
            for name, asked in init.items():
                node.kubelet.start_container(pod, name)
                assert node.grant(pod, name) == {card: share(*asked)}
                node.set_status(pod, states={name: {"terminated": {"exitCode": 0}}})
            names = list(shape)
            draw.shuffle(names)
            for name in names:
                eventually("its own share", lambda: node.kubelet.start_container(pod, name) is None and
                           has(pod, name, card, shape[name]), 5)
            alive.append((pod, card, need, shape))

        def has(pod, name, card, asked):
            try:
                return node.grant(pod, name) == {card: share(*asked)}
            except FileNotFoundError:
                return False

        def end():
            if not alive:
                return
            pod, card, need, _ = alive.pop(draw.randrange(len(alive)))
            if draw.random() < 0.5:
                node.set_status(pod, phase=draw.choice(["Succeeded", "Failed"]))
                node.kubelet.forget(pod)
            else:
                node.delete_pod(pod)
            free[card][0] += need[0]
            free[card][1] += need[1]

        def restart():
            if alive:
                pod, card, _, shape = draw.choice(alive)
                name = draw.choice(list(shape))
                node.kubelet.start_container(pod, name)
                assert has(pod, name, card, shape[name]), (name, node.grant(pod, name), shape)

        def kill_agent():
            node.kill_agent()
            # Between its death and the kubelet's notice of it pods fail, whoever the plugin is.
            eventually("its end is noticed", lambda: node.kubelet.allocatable(MEMORY) == 0 ==
                       node.kubelet.allocatable(CORE))
            node.start_agent().wait_offered(total, 400)

        def kill_kubelet():
            node.kubelet.stop()
            node.kubelet.start()
            node.wait_offered(total, 400)

        for step in range(150):
            action = draw.choices([create, end, restart, kill_agent, kill_kubelet], [40, 30, 30, 3, 3])[0]
            try:
                action()
            except Exception as error:
                raise AssertionError(f"seed {seed}, step {step}, {action.__name__}: {error}") from error
        for pod, card, _, shape in alive:
            for name, asked in shape.items():
                assert has(pod, name, card, asked), (seed, pod, name)
        while alive:
            end()
        node.wait_empty()
        log = open(node.log).read()
        assert "not fit any more" not in log and "could not be given back" not in log


def malformed_calls():
    import grpc
    with serving() as node:
        for ids in ([], ["x1"], ["m"], ["m99999999999"], ["m-1"], ["m1\n"]):
            request = node.kubelet.pb.AllocateRequest()
            request.container_requests.add(device_ids=ids)
            try:
                node.kubelet.call(MEMORY, "Allocate", request, node.kubelet.pb.AllocateResponse)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
            else:
                raise AssertionError(f"{ids} were taken")
        node.wait_offered()


SCENES = [registers_and_describes_the_node, a_driver_that_comes_after_the_agent, a_pod_gets_what_its_allocation_says, many_equal_pods_at_once,
          kubelet_without_get, same_ids_recorded_for_two_pods, containers_of_one_pod, several_cards,
          init_containers_share_the_pods_charge, equal_init_container_with_other_compute,
          a_pod_that_the_watch_does_not_have_yet, a_new_pod_of_an_old_name, without_a_checkpoint_by_elimination, wrong_records_give_no_card,
          a_card_is_never_given_twice, bound_without_the_scheduler, agent_killed_and_back, a_full_disk_under_the_state_directory, worker_killed_under_a_stream_of_pods,
          worker_that_dies_again_and_again, front_killed_alone, agent_ends_politely,
          kubelet_restarts, node_reboots, a_sick_card_keeps_what_is_held,
          a_card_that_cannot_be_limited_is_not_offered, modes_change_while_pods_run,
          unknown_modes_say_so, whole_cards, another_plugin_has_the_whole_cards, others_who_give_out_the_cards, share_mode_sets_no_limit,
          delivery_by_environment, old_runtime_with_cdi_says_so, an_agent_without_the_api_server_offers_again,
          clean_up_leaves_nothing, churn, malformed_calls]


fake_node.play(SCENES)
