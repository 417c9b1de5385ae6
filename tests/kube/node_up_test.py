#!/usr/bin/env python3
"""Real nodes work as nodes do: pods run, logs and exec answer, containers outlive kubelet and containerd, a reboot stops all
and clears what lies in memory, and nothing is left when a node is off. The ground that the other node tests stand on."""

import os
import sys
from pathlib import Path

import node_world

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: sluice/workloads:0.1
      imagePullPolicy: Never
      command: [sh, -c, "echo says hello; sleep 1000"]
"""


def run_pod(cluster, name, node):
    cluster.apply(POD.replace("NAME", name).replace("NODE", node))
    cluster.wait_running(name)
    assert cluster.kubectl("logs", name).stdout == "says hello\n"
    assert cluster.exec(name, "echo", "from inside") == "from inside\n"


def faults(cluster, node):
    cluster.exec("a", "touch", "/tmp/before")
    node.kill_kubelet()
    node.kill_containerd()
    node.start_containerd()
    node.start_kubelet()
    node.wait_ready()
    cluster.wait_for(lambda: "before" in cluster.exec("a", "ls", "/tmp", check=False), 20, "the same container answers")
    assert cluster.pod("a")["status"]["containerStatuses"][0]["restartCount"] == 0
    print("ok    a container outlives its kubelet and containerd")
    node.path("/run/in-memory").write_text("x")
    node.path("/var/lib/sluice/on-disk").write_text("x")
    node.reboot()
    assert not node.path("/run/in-memory").exists() and node.path("/var/lib/sluice/on-disk").exists()
    cluster.wait_for(lambda: cluster.pod("a")["status"]["containerStatuses"][0]["restartCount"] == 1, 60, "started again after the reboot")
    assert cluster.exec("a", "echo", "again") == "again\n"
    print("ok    a reboot stops all, clears /run, keeps the disk; the kubelet starts the pod again")


def left_after(node):
    assert node_world.has_device(node.bridge)
    node.stop()
    assert not node_world.processes_in(node.cgroup), "processes are left"
    assert not any(str(node.folder) in line for line in Path("/proc/self/mounts").read_text().splitlines() if "containerd tmpfs" not in line)
    assert not node_world.has_device(node.bridge)
    print("ok    nothing is left of a node that is off")


def main():
    node_world.enter()
    import images
    from nodes import NodeCluster
    archives = images.shipped(os.environ["SLUICE_BUILD"], node_world.folder(), "workloads")
    with NodeCluster(images=archives) as cluster:
        a, b = cluster.add_real_node("node-a"), cluster.add_real_node("node-b")
        run_pod(cluster, "a", "node-a")
        run_pod(cluster, "b", "node-b")
        there = cluster.pod("b")["status"]["podIP"]
        assert cluster.exec("a", "ping", "-c1", "-W5", there), "pods of two nodes reach each other"
        assert cluster.exec("a", "nc", "-w5", "10.0.0.1", "443", "-e", "/bin/true") == "", "pods reach the API server"
        print("ok    pods on two nodes run, log, take commands and reach each other and the API server")
        faults(cluster, a)
        left_after(b)


if __name__ == "__main__":
    main()
    sys.exit(0)
