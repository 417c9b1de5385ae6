#!/usr/bin/env python3
"""A node that is not Sluice's alone: another poller of the kubelet's record, another plugin that offers nvidia.com/gpu, a
DRA driver with a DeviceClass that claims the cards, a container runtime that does not read CDI specs. The node says what is the
matter, and pods with shares go on. And the delivery for such runtimes, by environment and mounts: the limits hold."""

import json
import sys
from pathlib import Path

import node_world

SOURCE = Path(__file__).resolve().parent.parent.parent
CARDS, CARD_UNITS = 2, 31
GPU, GPU_MEM, GPU_CORE = "nvidia.com/gpu", "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
OFFERED = {GPU_MEM: str(CARD_UNITS * CARDS), GPU_CORE: str(100 * CARDS)}


class Neighbours:
    def __init__(self, cluster, node, bare, shapes):
        self.cluster, self.node, self.bare, self.shapes = cluster, node, bare, shapes

    def enforcing(self, node):
        found = [one for one in self.cluster.node_object(node.name)["status"]["conditions"] if one["type"] == "SluiceEnforcing"]
        return found[0] if found else {}

    def wait_enforcing(self, node, reason, seconds=60):
        try:
            self.cluster.wait_for(lambda: self.enforcing(node).get("reason") == reason, seconds, "the condition")
        except AssertionError:
            raise AssertionError(f"condition {reason} on {node.name} within {seconds} s: it is {self.enforcing(node)}") from None
        return self.enforcing(node)["message"]

    def share(self, name, node=None):
        """A pod with a share runs, and its limits hold."""
        from node_shapes_test import ask
        self.shapes.expect(self.shapes.run(name, [ask("c", 6, 20)], node=node), "c", 6)

    # --- cases ---

    def other_plugin(self):
        """It was there before Sluice was installed."""
        self.cluster.wait_allocatable(self.node, {GPU: "3", **OFFERED})
        said = self.wait_enforcing(self.node, "OtherDevicePlugin")
        assert "offers 3 nvidia.com/gpu" in said, said
        self.share("beside-a-plugin")
        self.cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": "theirs"}, "spec": {
            "restartPolicy": "Never", "nodeName": self.node.name, "containers": [{
                "name": "c", "image": "sluice-test/probe:1", "imagePullPolicy": "Never", "command": ["sh", "-c", "echo plugin=$OTHER_PLUGIN"],
                "resources": {"limits": {GPU: "1"}}}]}})
        self.cluster.wait_phase("theirs", "Succeeded")
        assert "plugin=yes" in self.cluster.kubectl("logs", "theirs").stdout
        self.plugin.kill()
        self.plugin.wait()
        self.wait_enforcing(self.node, "LimitsHold")
        return "another plugin offers nvidia.com/gpu: it keeps it, the node's condition says so, pods with shares run, and theirs too"

    def poller(self):
        """Every List makes the kubelet forget device ids that it is handing out at the moment."""
        from node_shapes_test import ask
        poller = self.node.spawn("poller", "/usr/bin/python3", SOURCE / "tests/kube/neighbour.py", node_world.folder() / "proto", "poller", "40")
        names = [f"polled-{i}" for i in range(24)]
        for number, name in enumerate(names):
            init = [ask("first", 2, 5)] if number % 3 == 0 else []
            self.cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "nodeSelector": {"kubernetes.io/hostname": self.node.name},
                "containers": [ask("c", 1 + number % 3, 5)], "initContainers": init}})
        for number, name in enumerate(names):
            self.cluster.wait_phase(name, "Succeeded", seconds=120)
            pod = self.cluster.pod(name)
            self.shapes.expect(pod, "c", 1 + number % 3)
            if number % 3 == 0:
                self.shapes.expect(pod, "first", 2)
        assert poller.poll() is None, self.node.log("poller")
        answers = int(self.node.log("poller").split()[-1])
        poller.kill()
        poller.wait()
        return f"another program asks for the kubelet's whole record ({answers} times): {len(names)} pods, each with its own share"

    def dra(self):
        cards = json.loads(self.cluster.node_object(self.node.name)["metadata"]["annotations"]["sluice.dev/cards"])
        base = "/apis/resource.k8s.io/v1"
        self.cluster.api.post(f"{base}/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}], "extendedResourceName": GPU}})
        self.cluster.api.post(f"{base}/resourceslices", {"metadata": {"name": "b-gpus"}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": self.node.name, "pool": {"name": self.node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{card['index']}", "attributes": {"uuid": {"string": card["uuid"]}}} for card in cards]}})
        said = self.wait_enforcing(self.node, "CardsClaimedByDra")
        assert f"gpu.nvidia.com publishes {CARDS} devices" in said, said
        self.share("beside-dra")
        assert self.cluster.kubectl("delete", "resourceslice", "b-gpus").returncode == 0
        assert self.cluster.kubectl("delete", "deviceclass", "gpu.nvidia.com").returncode == 0
        self.cluster.api.post(f"{base}/deviceclasses", {"metadata": {"name": "units"}, "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'cards.example'"}}], "extendedResourceName": GPU_MEM}})
        said = self.wait_enforcing(self.node, "NameClaimedByDra")
        assert said.startswith(f"DeviceClass units stands for {GPU_MEM}"), said
        self.share("beside-a-class")
        assert self.cluster.kubectl("delete", "deviceclass", "units").returncode == 0
        self.wait_enforcing(self.node, "LimitsHold")
        return "a DRA driver publishes the cards, a DeviceClass claims them or Sluice's names: the node's condition says so, pods with shares run"

    def cdi_off(self):
        """containerd 2.4 cannot switch CDI off; one that reads specs elsewhere is what is left of that."""
        from node_shapes_test import ask
        self.shapes.run("bare", [ask("c", 6, 20)], node=self.bare, phase="Pending")
        said = self.wait_enforcing(self.bare, "CdiOff")
        assert "container c of default/bare" in said and "cdi_spec_dirs" in said and "--delivery env" in said, said
        assert self.cluster.pod("bare")["status"]["phase"] == "Pending"
        self.cluster.delete_pod("bare")
        self.wait_enforcing(self.bare, "LimitsHold")
        return "a runtime that does not read CDI specs: the container does not start, and the node's condition says why"

    def by_environment(self):
        """The agents of the cluster deliver by environment and mounts from now on; on the node without CDI it is what works."""
        from node_shapes_test import LOOK, ask
        self.cluster.apply(self.cluster.manifest.replace("        - --whole-cards\n", "        - --whole-cards\n        - --delivery=env\n"))
        self.cluster.wait_rollout("daemonset/sluice-agent")
        for node in (self.bare, self.node):
            self.cluster.wait_allocatable(node, OFFERED)
            self.share(f"by-env-{node.name}", node=node)
        pod = self.shapes.run("by-env-several", [ask("a", 12, 30), ask("b", 3, 5), ask("without")], node=self.bare)
        self.shapes.expect(pod, "a", 12)
        self.shapes.expect(pod, "b", 3)
        self.shapes.no_card(pod, "without")
        pod = self.shapes.run("by-env-init", [ask("main", 4, 20)], init=[ask("first", 8, 30), ask("second", 4, 10)], node=self.bare)
        for container, units in (("first", 8), ("second", 4), ("main", 4)):
            self.shapes.expect(pod, container, units)
        # Two pods that fill a card each, at once, and one on both cards.
        for name in ("by-env-x", "by-env-y"):
            self.shapes.run(name, [ask("c", 20, 60, LOOK + "; sleep 5")], node=self.bare, phase=("Running", "Succeeded"))
        for name in ("by-env-x", "by-env-y"):
            self.cluster.wait_phase(name, "Succeeded")
            self.expect_limit(name, 20)
        assert self.enforcing(self.bare)["status"] == "True", self.enforcing(self.bare)
        return "delivery by environment and mounts on real nodes, with and without CDI: pods run, the limits hold"

    def expect_limit(self, name, units):
        """The limit holds; which card the environment names is a guess between equal pods."""
        from node_shapes_test import limit_mib
        lines = self.shapes.said(self.cluster.pod(name), "c")
        cards = [line.split() for line in lines if line.startswith("card ")]
        assert [int(card[3]) for card in cards] == [limit_mib(units)], lines
        self.shapes.refused_at(lines, limit_mib(units))


CASES = ("other_plugin", "poller", "dra", "cdi_off", "by_environment")


def main():
    node_world.enter()
    wanted = sys.argv[1:] or CASES
    import images
    from node_install import InstalledCluster
    from node_shapes_test import Shapes
    import node_truth
    proto = node_truth.make_proto(node_world.folder() / "proto")
    with InstalledCluster(images=[images.probe(node_world.folder())]) as cluster:
        node = cluster.add_sharing_node("node-b")
        bare = cluster.add_sharing_node("node-c", cdi=False)
        cases = Neighbours(cluster, node, bare, Shapes(cluster, node, None, None))
        if "other_plugin" in wanted:
            cases.plugin = node.spawn("plugin", "/usr/bin/python3", SOURCE / "tests/kube/neighbour.py", proto, "plugin", GPU, "3")
            cluster.wait_allocatable(node, {GPU: "3"})
        cluster.install(count=CARDS)
        for one in (node, bare):
            cluster.wait_allocatable(one, OFFERED)
        node_world.run_cases(wanted, cases)


if __name__ == "__main__":
    main()
    sys.exit(0)
