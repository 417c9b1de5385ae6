#!/usr/bin/env python3
"""Pods of every shape on real nodes: several containers, init containers, sidecars, several cards, memory alone, share;
users who try to get more than they asked for; and the surroundings that images and policies bring (non-root, read-only
root, restricted Pod Security, user namespaces, musl). The limits hold in each, and nothing crashes."""

import sys

import node_world

CARD_MIB, CARD_UNITS, CARDS = 32510, 31, 2
GPU_MEM, GPU_CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
LOOK = "card_probe --fill"


def limit_mib(units):
    return CARD_MIB * units // CARD_UNITS


def ask(name, units=None, core=None, command=LOOK, **more):
    """A container; units None asks for no card. The command is a shell's."""
    limits = {key: str(value) for key, value in ((GPU_MEM, units), (GPU_CORE, core)) if value is not None}
    return {"name": name, "image": "sluice-test/probe:1", "imagePullPolicy": "Never",
            "command": ["sh", "-c", f"echo devices=$NVIDIA_VISIBLE_DEVICES; {command}"], "resources": {"limits": limits}, **more}


class Shapes:
    def __init__(self, cluster, node, memory_node, share_node):
        self.cluster, self.node, self.memory_node, self.share_node = cluster, node, memory_node, share_node

    def run(self, name, containers, init=(), labels=None, node=None, phase="Succeeded", metadata=None, **spec):
        """Makes the pod and waits for the phase."""
        self.cluster.api.post(f"/api/v1/namespaces/{(metadata or {}).get('namespace', 'default')}/pods", {
            "metadata": {"name": name, "labels": labels or {}, **(metadata or {})},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": list(containers),
                     "initContainers": list(init), "nodeSelector": {"kubernetes.io/hostname": (node or self.node).name}, **spec}})
        namespace = (metadata or {}).get("namespace", "default")
        self.cluster.wait_phase(name, phase, namespace=namespace)
        return self.cluster.pod(name, namespace=namespace)

    def said(self, pod, container):
        namespace = pod["metadata"]["namespace"]
        result = self.cluster.kubectl("logs", "-n", namespace, pod["metadata"]["name"], "-c", container)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    def card_lines(self, pod, container):
        return [line.split() for line in self.said(pod, container) if line.startswith("card ")]

    def expect(self, pod, container, units, cards=1):
        """The container saw only the recorded cards, `units` of each, and could take no more than that."""
        import node_truth
        lines = self.said(pod, container)
        recorded = node_truth.recorded_cards(pod)
        seen = [line.split()[2] for line in lines if line.startswith("card ")]
        assert sorted(seen) == recorded and len(seen) == cards, f"{container} saw {lines}, recorded {recorded}"
        totals = {int(line.split()[3]) for line in lines if line.startswith("card ")}
        assert totals == {limit_mib(units)}, f"{container}: {totals}, wanted {limit_mib(units)}: {lines}"
        self.refused_at(lines, limit_mib(units))

    @staticmethod
    def refused_at(lines, limit):
        filled = next((line.split() for line in lines if line.startswith("filled ")), None)
        assert filled is not None, lines
        assert filled[2] == "2" and limit - 1200 < int(filled[1]) <= limit, f"filled {filled[1]} MiB (code {filled[2]}) of {limit}: {lines}"

    def no_card(self, pod, container):
        """A container that did not ask: it finds no driver."""
        lines = self.said(pod, container)
        assert not [line for line in lines if line.startswith("card ")], lines
        assert any(line.startswith("no library") for line in lines), lines

    # --- shapes ---

    def several_containers(self):
        pod = self.run("equal", [ask("a", 5, 10), ask("b", 5, 10)])
        self.expect(pod, "a", 5)
        self.expect(pod, "b", 5)
        pod = self.run("unequal", [ask("a", 12, 30), ask("b", 3, 5), ask("without")])
        self.expect(pod, "a", 12)
        self.expect(pod, "b", 3)
        self.no_card(pod, "without")
        return "several containers: equal, unequal, one without a card"

    def init_containers(self):
        pod = self.run("init", [ask("main", 4, 20)], init=[ask("first", 8, 30), ask("none"), ask("second", 2, 10)])
        self.expect(pod, "first", 8)
        self.expect(pod, "second", 2)
        self.expect(pod, "main", 4)
        self.no_card(pod, "none")
        return "init containers with more and with less than the pod's containers"

    def sidecar(self):
        pod = self.run("sidecar", [ask("main", 4, 20)],
                       init=[ask("side", 3, 10, LOOK + "; sleep 1000", restartPolicy="Always")])
        self.expect(pod, "main", 4)
        self.expect(pod, "side", 3)
        return "a sidecar that asks beside a container that asks"

    def several_cards(self):
        pod = self.run("two-cards", [ask("c", 10, 40)], labels={"aliyun.com/gpu-count": "2"})
        self.expect(pod, "c", 5, cards=2)
        return "one pod on two cards"

    def memory_only(self):
        pod = self.run("memory", [ask("c", 7)], node=self.memory_node)
        self.expect(pod, "c", 7)
        return "memory alone on a cgpu node"

    def share(self):
        """share: scheduling only. The whole card is seen; the application limits itself."""
        pod = self.run("share", [ask("c", 7, None, "card_probe")], node=self.share_node)
        lines = self.card_lines(pod, "c")
        assert len(lines) == 1 and int(lines[0][3]) >= CARD_MIB - 32, lines
        said = self.said(pod, "c")
        assert any(line == f"devices={lines[0][2]}" for line in said), said
        return "share node: one card, all of its memory, no limits"

    # --- users who want more ---

    def own_environment(self):
        hostile = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "CGPU_DISABLE", "value": "true"},
                   {"name": "LD_LIBRARY_PATH", "value": "/run/sluice/container/driver"}, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "31"},
                   {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}, {"name": "SLUICE_SIM_DIR", "value": "/var/lib/sluice-sim"}]
        for index, variable in enumerate(hostile):
            pod = self.run(f"env-{index}", [ask("c", 6, 20, env=[variable])])
            self.expect(pod, "c", 6)
            uuid = self.card_lines(pod, "c")[0][2]
            assert f"devices={uuid}" in self.said(pod, "c"), self.said(pod, "c")
        return "user-set NVIDIA_VISIBLE_DEVICES, CGPU_DISABLE, CUDA_VISIBLE_DEVICES, LD_LIBRARY_PATH, ... raise nothing"

    def own_preload(self):
        pod = self.run("preload", [ask("c", 6, 20, "LD_PRELOAD=libm.so.6 card_probe --fill")])
        self.expect(pod, "c", 6)
        return "a preload of the user's own changes nothing"

    def own_volume(self):
        """Volumes of the pod over the places where our libraries and the grant lie."""
        for index, path in enumerate(("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/run/sluice/container", "/run/sluice/container/grant")):
            volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
            name = f"volume-{index}"
            pod = self.run(name, [ask("c", 6, 20, "card_probe --fill; ls /run/sluice/container/grant", volumeMounts=[{"name": "v", "mountPath": path}])],
                           phase=("Succeeded", "Pending", "Failed", "Running"), **volume)
            self.fails_closed_or_holds(pod, name)
        return "volumes over the library and the grant: the limit holds or the program gets no card"

    def fails_closed_or_holds(self, pod, name):
        def settled():
            now = self.cluster.pod(name)
            waiting = [one["state"].get("waiting", {}).get("reason", "") for one in now["status"].get("containerStatuses", [])]
            return now["status"]["phase"] in ("Succeeded", "Failed") or any("Error" in reason for reason in waiting)
        self.cluster.wait_for(settled, 40, f"{name} ends or is refused")
        if self.cluster.pod(name)["status"]["phase"] == "Succeeded":
            lines = self.said(pod, "c")
            if any(line.startswith("filled") for line in lines):
                self.refused_at(lines, limit_mib(6))
        self.cluster.delete_pod(name)

    def writes_to_the_grant(self):
        tries = "; ".join(["for f in /run/sluice/container/grant/*; do echo x > $f && echo wrote; done 2>/dev/null",
                           "touch /run/sluice/container/grant/new 2>/dev/null && echo made",
                           "mount -o remount,rw /run/sluice/container/grant 2>/dev/null && echo remounted",
                           "umount /usr/lib/x86_64-linux-gnu/libcuda.so.1 2>/dev/null && echo unmounted",
                           "for i in $(seq 0 4096 65536); do dd if=/dev/zero of=$(ls /run/sluice/container/usage* | head -n1) bs=1 count=64 seek=$i conv=notrunc 2>/dev/null; done",
                           "card_probe --fill"])
        pod = self.run("writes", [ask("c", 6, 20, tries)])
        lines = self.said(pod, "c")
        assert not {"wrote", "made", "remounted", "unmounted"} & set(lines), lines
        if any(line.startswith("filled") for line in lines):  # a usage page full of zeros may also be refused
            self.refused_at(lines, limit_mib(6))
        after = self.run("after", [ask("c", 6, 20)])
        self.expect(after, "c", 6)
        return "writes into grant and usage page: nothing is raised, the next pod gets its share"

    # --- surroundings ---

    def non_root(self):
        pod = self.run("non-root", [ask("c", 6, 20)], securityContext={"runAsUser": 12345, "runAsGroup": 12345, "runAsNonRoot": True})
        self.expect(pod, "c", 6)
        return "non-root"

    def read_only_root(self):
        pod = self.run("read-only", [ask("c", 6, 20, "touch /written 2>/dev/null && echo written; " + LOOK,
                                         securityContext={"readOnlyRootFilesystem": True})])
        assert "written" not in self.said(pod, "c")
        self.expect(pod, "c", 6)
        return "read-only root file system"

    def restricted(self):
        self.cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "strict", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
        self.cluster.wait_for(lambda: self.cluster.kubectl("-n", "strict", "get", "serviceaccount", "default").returncode == 0, 20, "namespace strict")
        pod = self.run("restricted", [ask("c", 6, 20, securityContext={"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}})],
                       metadata={"namespace": "strict"},
                       securityContext={"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}})
        self.expect(pod, "c", 6)
        return "restricted Pod Security"

    def user_namespace(self):
        """hostUsers: false. Where the container runtime cannot do that the pod is refused, whatever the node's agent does."""
        name = "user-namespace"
        self.cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "hostUsers": False, "containers": [ask("c", 6, 20, "cat /proc/self/uid_map; " + LOOK)],
            "nodeSelector": {"kubernetes.io/hostname": self.node.name}}})

        def refusal():
            return [text for text in self.cluster.events_of(name) if "user namespace" in text or "idmap" in text or "operation not permitted" in text]
        self.cluster.wait_for(lambda: refusal() or self.cluster.pod(name)["status"]["phase"] in ("Succeeded", "Failed"), 60, "it ends or is refused")
        if refusal():
            self.cluster.delete_pod(name)
            return f"user namespaces are not possible here: {refusal()[0]}"
        pod = self.cluster.pod(name)
        assert self.said(pod, "c")[1].split()[1] != "0", "the pod has a user namespace"
        self.expect(pod, "c", 6)
        return "user namespace (hostUsers: false)"

    def musl(self):
        """The driver, simulated or real, needs glibc; in a musl image without it CUDA says so, and nothing crashes."""
        container = ask("c", 6, 20, "card_probe --fill; echo status=$?")
        container["image"] = "sluice-test/musl:1"
        pod = self.run("musl", [container])
        lines = self.said(pod, "c")
        assert "status=0" in lines, lines
        if any(line.startswith("filled") for line in lines):
            self.expect(pod, "c", 6)
        return f"musl image: {[line for line in lines if not line.startswith('devices')]}"


CASES = ("several_containers", "init_containers", "sidecar", "several_cards", "memory_only", "share", "own_environment", "own_preload",
         "own_volume", "writes_to_the_grant", "non_root", "read_only_root", "restricted", "user_namespace", "musl")


def main():
    node_world.enter()
    wanted = sys.argv[1:] or CASES
    import images
    from node_install import InstalledCluster
    probes = [images.probe(node_world.folder()), images.probe(node_world.folder(), "musl-gcc")]
    with InstalledCluster(images=probes) as cluster:
        nodes = [cluster.add_sharing_node(name, mode, user_namespaces=name == "node-b")
                 for name, mode in (("node-b", "core_mem"), ("node-m", "cgpu"), ("node-s", "share"))]
        cluster.install(count=CARDS)
        cluster.wait_allocatable(nodes[0], {GPU_MEM: str(CARD_UNITS * CARDS), GPU_CORE: str(100 * CARDS)})
        for node in nodes[1:]:
            cluster.wait_allocatable(node, {GPU_MEM: str(CARD_UNITS * CARDS)})
        node_world.run_cases(wanted, Shapes(cluster, *nodes))


if __name__ == "__main__":
    main()
    sys.exit(0)
