#!/usr/bin/env python3
"""What goes wrong on real nodes: kubelet, agent and whole node die and come back under pods in every state, cards fall ill,
come back, are replaced, labels change under running pods. Running pods keep their caps, waiting ones run in the end, no
pod is failed by us, and the node says what it is waiting for."""

import calendar
import json
import sys
import time

import node_world

CARD_MIB, CARD_UNITS, CARDS = 32510, 31, 2
GPU_MEM, GPU_CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
STATUS_SECONDS = 2  # between the status reports of this cluster's kubelets (10 by default)
STATE = "/opt/sluice-sim/state"


class Faults:
    def __init__(self, cluster, node):
        self.cluster, self.node = cluster, node

    # --- tools ---

    def make(self, name, units, core=None, command="card_probe --alloc 100 --sleep 10000", policy="Never", init=(), **spec):
        def container(container_name, line):
            limits = {key: str(value) for key, value in ((GPU_MEM, units), (GPU_CORE, core)) if value is not None}
            return {"name": container_name, "image": "sluice-test/probe:1", "imagePullPolicy": "Never",
                    "command": ["sh", "-c", line], "resources": {"limits": limits}}
        self.cluster.api.post("/api/v1/namespaces/default/pods", {
            "metadata": {"name": name, "labels": spec.pop("labels", {})},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 0, "containers": [container("c", command)],
                     "initContainers": [container(f"i{i}", line) for i, line in enumerate(init)], **spec}})

    def deployment(self, name, units, core, command="card_probe --alloc 100 --sleep 10000"):
        self.cluster.api.post("/apis/apps/v1/namespaces/default/deployments", {
            "metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                    "name": "c", "image": "sluice-test/probe:1", "imagePullPolicy": "Never", "command": ["sh", "-c", command],
                    "resources": {"limits": {GPU_MEM: str(units), GPU_CORE: str(core)}}}]}}}})

    def pods(self, selector=""):
        return self.cluster.api.get(f"/api/v1/namespaces/default/pods?labelSelector={selector}")["items"]

    def clear(self):
        self.cluster.kubectl("delete", "deployments", "--all", "--wait=false")
        self.cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        self.cluster.wait_for(lambda: not self.pods(), 60, "the pods are gone")

    def unexpected(self, seen=()):
        """Pods that a kubelet failed at admission."""
        return [pod["metadata"]["name"] for pod in self.pods() if pod["status"].get("reason") == "UnexpectedAdmissionError"]

    def lines(self, name):
        return self.cluster.kubectl("logs", name).stdout.splitlines()

    def agent_process(self, worker=False):
        """The pid of the node's agent as this test sees it: of the process that the kubelet talks to, whose end is the
        container's, or of its worker."""
        uid = self.cluster.api.get(f"/api/v1/namespaces/sluice-system/pods/{self.cluster.agent_of(self.node.name)}")["metadata"]["uid"]
        import node_truth
        for pid in node_truth.processes_of(self.node, uid):
            line = node_world.command_line(pid)
            if b"sluice-agent" in line and line.startswith(b"sluice-agent-worker") == worker:
                return pid
        return None

    def condition(self, kind):
        found = [one for one in self.cluster.node_object(self.node.name)["status"]["conditions"] if one["type"] == kind]
        return found[0] if found else None

    def annotation(self, name):
        return self.cluster.node_object(self.node.name)["metadata"]["annotations"].get(name)

    def wait_offer(self, units, seconds=40):
        wanted = {GPU_MEM: None if units is None else str(units)}
        self.cluster.wait_allocatable(self.node, wanted, seconds)

    def filled(self):
        return [int(line.split()[1]) for line in self.lines("keeps") if line.startswith("filled")]

    # --- kubelet, agent, node ---

    def kubelet(self):
        """Killed and back with pods running, waiting, with a finished init container, and crash-looping."""
        import node_truth
        self.make("running", 4, 20)
        self.make("after-init", 4, 20, init=["card_probe"])
        self.make("crashing", 4, 20, command="card_probe; exit 1", policy="Always")
        for name in ("running", "after-init"):
            self.cluster.wait_running(name)
        self.cluster.wait_for(lambda: self.restarts("crashing") >= 1, 60, "a crash")
        before = {name: self.cluster.pod(name)["status"]["containerStatuses"][0]["containerID"] for name in ("running", "after-init")}
        self.node.kill_kubelet()
        self.make("meanwhile", 4, 20)
        time.sleep(1)
        self.node.start_kubelet()
        self.node.wait_ready()
        self.cluster.wait_running("meanwhile")
        for name, container in before.items():
            pod = self.cluster.pod(name)
            assert pod["status"]["phase"] == "Running", self.cluster.describe(name)
            assert pod["status"]["containerStatuses"][0]["containerID"] == container, f"{name} was started again"
            node_truth.check_running(self.node, pod)
        lost = self.unexpected()
        if "crashing" not in lost:
            count = self.restarts("crashing")
            self.cluster.wait_for(lambda: self.restarts("crashing") > count, 90, "it goes on crashing")
        assert set(lost) <= {"crashing"}, lost
        self.clear()
        return f"kubelet killed and back: running pods untouched, a waiting one runs{', the crash-looping one lost the race of the kubelet' if lost else ''}"

    def restarts(self, name):
        statuses = self.cluster.pod(name)["status"].get("containerStatuses", [])
        return statuses[0]["restartCount"] if statuses else 0

    def stream(self, made, kills, worker):
        """Pods come one after the other while the agent, or its worker alone, is killed. Returns when all have ended:
        the times of the kills."""
        killed_at = []
        for number in range(made):
            self.make(f"stream-{number}", 2, 5, command="echo devices=$NVIDIA_VISIBLE_DEVICES; card_probe --alloc 64")
            if number % (made // kills) == made // kills // 2:
                node_world.kill(self.cluster.wait_for(lambda: self.agent_process(worker), 90, "the agent is there"))
                killed_at.append(time.time())
            time.sleep(0.4)

        def ended():
            phases = [pod["status"]["phase"] for pod in self.pods()]
            return all(phase in ("Succeeded", "Failed") for phase in phases)
        self.cluster.wait_for(ended, 150, "all pods of the stream end")
        return killed_at

    def agent_under_stream(self):
        """The agent's worker, which is all of it but the kubelet's connection, is killed again and again while pods come
        one after the other: none fails, and each has what its record says."""
        import node_truth
        made, kills = 24, 6
        registered, restarts, _ = self.registrations(), *self.agent_restarts()
        self.stream(made, kills, worker=True)
        for pod in self.pods():
            name = pod["metadata"]["name"]
            assert pod["status"]["phase"] == "Succeeded", self.cluster.describe(name)
            assert f"devices={node_truth.recorded_cards(pod)[0]}" in self.lines(name), self.lines(name)
        assert self.registrations() == registered, "the kubelet has lost its plugin"
        now, last = self.agent_restarts()
        assert now == restarts, f"the agent's container ended {now - restarts} times under the stream: {last}"
        self.clear()
        return f"the agent's worker killed {kills} times under a stream of {made} pods: every one ran, on its card"

    def agent_restarts(self):
        """How often the agent's container was started again, and how its last one ended."""
        name = self.cluster.agent_of(self.node.name)
        status = self.cluster.api.get(f"/api/v1/namespaces/sluice-system/pods/{name}")["status"]["containerStatuses"][0]
        said = self.cluster.kubectl("-n", "sluice-system", "logs", "--previous", "--tail=5", name).stdout if status["restartCount"] else ""
        return status["restartCount"], f"{status.get('lastState')} {said}"

    def registrations(self):
        text = self.cluster.metrics(self.node)
        return [line.split()[-1] for line in text.splitlines() if line.startswith("sluice_agent_registrations_total")]

    def agent_container_under_stream(self):
        """Both processes are killed, which ends the container. From then until the next registration the kubelet itself
        fails what reaches it, and pods come until the Node object says that nothing is left: that race is the kubelet's,
        and these are the only pods that fail."""
        made, kills = 16, 2
        killed_at = self.stream(made, kills, worker=False)
        lost = self.unexpected()
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if name not in lost:
                assert pod["status"]["phase"] == "Succeeded", self.cluster.describe(name)
                continue
            said = pod["status"]["message"]
            assert "no healthy devices present" in said or "code = Unavailable" in said or "endpoint" in said, said
            reached = calendar.timegm(time.strptime(pod["status"]["startTime"], "%Y-%m-%dT%H:%M:%SZ"))
            assert any(-1.5 < reached - at < STATUS_SECONDS + 2 for at in killed_at), self.cluster.describe(name)
        self.clear()
        return f"the agent's container killed {kills} times under a stream of {made} pods, one in 0.4 s: {len(lost)} failed by the kubelet, which had no plugin"

    def caps_without_agent(self):
        """A running pod keeps its limit while the agent is away and after it has come back. What a program held that ended
        meanwhile stays charged until the agent has seen it go: the cap errs on the safe side."""
        self.make("keeps", 5, 20, command="card_probe; while sleep 1; do card_probe --fill; done")
        self.cluster.wait_running("keeps")
        node_world.kill(self.cluster.wait_for(self.agent_process, 90, "the agent is back"))
        self.cluster.wait_for(lambda: len(self.filled()) >= 3, 30, "it goes on")
        self.cluster.wait_agents()
        count, limit = len(self.filled()), CARD_MIB * 5 // CARD_UNITS
        self.cluster.wait_for(lambda: max(self.filled()[count:], default=0) > limit - 1500, 20, "all of its share again")
        assert max(self.filled()) <= limit, self.filled()
        self.clear()
        return "a pod keeps its limit while the agent is away"

    def node_reboot(self):
        """Every process stopped, /run cleared: a pod of a Deployment runs again, or its replacement does."""
        import node_truth
        self.deployment("service", 6, 30)
        self.cluster.wait_for(lambda: any(pod["status"]["phase"] == "Running" for pod in self.pods("app%3Dservice")), 60, "the service runs")
        self.node.reboot()
        self.cluster.wait_agents(120)

        # The only replica of the scheduler lay on the node too: its lease has to run out first.
        def runs():
            try:
                return [node_truth.check_running(self.node, pod) for pod in self.pods("app%3Dservice") if pod["status"]["phase"] == "Running"]
            except (AssertionError, OSError):
                return None  # not yet
        self.cluster.wait_for(runs, 120, "the service runs and uses its card after the reboot")
        failed = [one for one in self.pods("app%3Dservice") if one["status"]["phase"] == "Failed"]
        self.clear()
        node_truth.wait_nothing_left(self.cluster, self.node)
        return f"node rebooted: the service runs again{' in a new pod (the kubelet failed the old one)' if failed else ''}, nothing is left"

    # --- cards ---

    def card_fault(self):
        import node_truth
        self.make("on-card", 4, 20, labels={})
        self.cluster.wait_running("on-card")
        uuid = node_truth.recorded_cards(self.cluster.pod("on-card"))[0]
        listed = json.loads(self.annotation("sluice.dev/cards"))
        sick, was = next((card["index"], card["uuid"]) for card in listed if card["uuid"] != uuid)
        self.cluster.sim(self.node, "fault", f"{STATE}/card{sick}", "lost")
        self.wait_offer(CARD_UNITS)
        assert not next(card for card in json.loads(self.annotation("sluice.dev/cards")) if card["index"] == sick)["healthy"]
        self.make("too-much", 28, 50)
        time.sleep(3)
        assert self.cluster.pod("too-much")["status"]["phase"] == "Pending" and not self.cluster.node_of("too-much")
        assert self.cluster.pod("on-card")["status"]["phase"] == "Running"
        self.cluster.sim(self.node, "fault", f"{STATE}/card{sick}", "back")
        self.wait_offer(CARD_UNITS * CARDS)
        self.cluster.wait_running("too-much")
        # What answers again in its place is another card, with a UUID of its own: served without a restart of the agent.
        new = node_truth.recorded_cards(self.cluster.pod("too-much"))
        assert new not in ([uuid], [was]), (new, uuid, was)
        now = {card["uuid"]: card["healthy"] for card in json.loads(self.annotation("sluice.dev/cards"))}
        assert now == {uuid: True, new[0]: True}, now
        node_truth.check_running(self.node, self.cluster.pod("too-much"))
        self.clear()
        return "a lost card is not offered, its pods aside nothing changes; another in its place takes the pod that waited, the agent runs on"

    def fewer_and_other_cards(self):
        """A card goes for good, another comes in its place: new UUID, then one card more."""
        before = {card["uuid"] for card in json.loads(self.annotation("sluice.dev/cards"))}
        self.node.run("sh", "-c", f"rm -rf {STATE}/card1 {STATE}/card1.contents")
        self.restart_agent()
        self.wait_offer(CARD_UNITS)
        self.cluster.sim(self.node, "create", STATE, "--card", "V100-SXM2-32GB", "--seed", "777")
        self.cluster.sim(self.node, "create", STATE, "--card", "V100-SXM2-32GB", "--seed", "778")
        self.node.run("chmod", "-R", "a+rwX", STATE)
        self.restart_agent()
        self.wait_offer(CARD_UNITS * 3)
        after = {card["uuid"] for card in json.loads(self.annotation("sluice.dev/cards"))}
        assert len(after) == 3 and len(after & before) == 1, (before, after)
        labels = self.cluster.node_object(self.node.name)["metadata"]["labels"]
        assert labels["aliyun.accelerator/nvidia_count"] == "3", labels
        self.make("big", 3 * CARD_UNITS, 300, labels={"aliyun.com/gpu-count": "3"})
        self.cluster.wait_running("big")
        self.clear()
        self.node.run("sh", "-c", f"rm -rf {STATE}/card2 {STATE}/card2.contents")
        self.restart_agent()
        self.wait_offer(CARD_UNITS * CARDS)
        return "a card less, another card in its place, a card more: offered as they are, by their UUIDs"

    def restart_agent(self):
        """As after a change of hardware: the agent's pod starts anew."""
        name = self.cluster.agent_of(self.node.name)
        self.cluster.kubectl("-n", "sluice-system", "delete", "pod", name, "--wait=true")
        self.cluster.wait_for(lambda: self.cluster.agent_of(self.node.name), 30, "a new agent")
        self.cluster.wait_agents()

    # --- labels ---

    def offered(self, mode):
        """What the node shows when nothing of it is held."""
        units, core = str(CARD_UNITS * CARDS), str(100 * CARDS)
        return {GPU_MEM: "0" if mode == "default" else units, GPU_CORE: core if mode == "core_mem" else "0",
                "nvidia.com/gpu": str(CARDS) if mode == "default" else "0"}

    def relabel(self):
        """From each mode to each other with a pod of the old kind present, on one walk that takes every way once: it keeps
        running and keeps its share, nothing else is offered meanwhile, the switch follows by itself when it has gone."""
        # A mode's resource that was never there is not shown at all; from its first time on it is "0".
        for mode in ("default", "core_mem"):
            self.label(mode)
            self.wait_settled(mode)
        way = ("core_mem", "cgpu", "core_mem", "share", "core_mem", "default", "cgpu", "share", "cgpu", "default", "share", "default", "core_mem")
        steps = list(zip(way, way[1:]))
        assert len(set(steps)) == 12
        for old, new in steps:
            self.change_with_a_pod(old, new, newcomer=(old, new) == steps[0])
        return f"labels: all {len(steps)} ways from one of four modes to another, each with a pod of the old kind"

    def label_removed(self):
        """As default: the pod keeps what it has; when it has gone the agent leaves the node, and comes back with the label."""
        self.change_with_a_pod("core_mem", None)
        self.cluster.wait_for(lambda: not self.cluster.agent_of(self.node.name), 30, "the agent has left")
        self.label("core_mem")
        self.cluster.wait_for(lambda: self.cluster.agent_of(self.node.name), 30, "a new agent")
        self.wait_settled("core_mem")
        return "label removed with a pod present: it keeps running, then the node is free of Sluice; with the label it shares again"

    def label(self, mode):
        self.cluster.label_node(self.node.name, {"ack.node.gpu.schedule": mode})

    def wait_settled(self, mode):
        shares = mode not in ("default", None)  # of whole cards the node says nothing
        self.cluster.wait_for(lambda: self.annotation("sluice.dev/mode") == (mode if shares else None), 30, f"mode {mode} is in force")
        self.cluster.wait_allocatable(self.node, self.offered(mode) if mode else {GPU_MEM: "0", GPU_CORE: "0"})

    def change_with_a_pod(self, old, new, newcomer=False):
        import node_truth
        way, name = f"{old} -> {new}", f"{old}-to-{new}".lower().replace("_", "-")
        if old == "default":
            self.make_whole(name)
            held = {"nvidia.com/gpu": "1", GPU_MEM: "0", GPU_CORE: "0"}
        else:
            core = 20 if old == "core_mem" else None
            self.make(name, 4, core)
            held = {"nvidia.com/gpu": "0", GPU_MEM: "4", GPU_CORE: str(core or 0)}
        self.cluster.wait_running(name)
        self.label(new)

        def waits():
            condition = self.condition("SluiceModeSettled")
            return condition and condition["status"] == "False" and f"default/{name}" in condition["message"]
        self.cluster.wait_for(waits, 20, f"{way}: the node says that it waits for {name}")
        self.cluster.wait_allocatable(self.node, held)
        if newcomer:
            self.make("newcomer", 4, 20)
            time.sleep(3)
            assert not self.cluster.node_of("newcomer"), f"{way}: a pod was placed while the old one is waited for"
            self.cluster.delete_pod("newcomer")
        pod = self.cluster.pod(name)
        status = pod["status"]["containerStatuses"][0]
        assert pod["status"]["phase"] == "Running" and status["restartCount"] == 0, f"{way}: {self.cluster.describe(name)}"
        if old != "default":
            node_truth.check_running(self.node, pod)
        self.cluster.delete_pod(name)
        self.wait_settled(new)

    def make_whole(self, name):
        self.cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [{
                "name": "c", "image": "sluice-test/probe:1", "imagePullPolicy": "Never", "command": ["card_probe", "--sleep", "10000"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}})


CASES = ("agent_under_stream", "agent_container_under_stream", "kubelet", "caps_without_agent", "node_reboot", "card_fault", "fewer_and_other_cards", "relabel", "label_removed")


def main():
    node_world.enter()
    wanted = sys.argv[1:] or CASES
    import images
    from node_install import InstalledCluster
    with InstalledCluster(images=[images.probe(node_world.folder())]) as cluster:
        node = cluster.add_sharing_node("node-b")
        cluster.install(count=CARDS)
        faults = Faults(cluster, node)
        faults.wait_offer(CARD_UNITS * CARDS)
        node_world.run_cases(wanted, faults, after_wrong=faults.clear)


if __name__ == "__main__":
    main()
    sys.exit(0)
