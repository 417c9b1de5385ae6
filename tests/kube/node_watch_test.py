#!/usr/bin/env python3
"""What a node's agent notices and shows, on a real node: cards used without a grant and past the library (metric, event,
policy `stop`), the metrics as a real Prometheus scrapes them from the agent, `sluice verify` inside a pod, and
`kubectl inspect cgpu` saying the same."""

import os
import subprocess
import sys
import time
from pathlib import Path

import node_world

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests/node"))
GPU_MEM, GPU_CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
SIM = "/opt/sluice-sim"
REASON = "CardUsedWithoutGrant"
# A tenant who brings a copy of the driver: here the node's own, through a hostPath. The variables are set by the
# program itself, since those of the pod's spec lose against the grant's.
OWN_DRIVER = {"volumes": [{"name": "driver", "hostPath": {"path": SIM}}], "mounts": [{"name": "driver", "mountPath": "/driver"}],
              "command": "env LD_LIBRARY_PATH=/driver SLUICE_SIM_DIR=/driver/state card_probe --alloc 300 --sleep 1000"}


def add_pod(cluster, name, units=None, core=None, command="card_probe --alloc 300 --sleep 1000", image="sluice-test/probe:1",
            namespace="default", driver=None, env=()):
    limits = {key: str(value) for key, value in ((GPU_MEM, units), (GPU_CORE, core)) if value is not None}
    container = {"name": "c", "image": image, "imagePullPolicy": "Never", "command": command.split(), "env": list(env),
                 "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    if driver:
        container.update(command=driver["command"].split(), volumeMounts=driver["mounts"])
        spec["volumes"] = driver["volumes"]
    if not limits:
        spec["nodeName"] = "node-a"
    cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})


def events(cluster, name):
    return [one["message"] for one in cluster.api.get("/api/v1/namespaces/default/events")["items"]
            if one["reason"] == REASON and one["involvedObject"].get("name") == name]


class Metrics:
    """A Prometheus beside the node that scrapes its agent's pod."""

    def __init__(self, cluster, node):
        from prometheus_test import Prometheus
        folder = node_world.folder() / "prometheus"
        folder.mkdir()
        address = cluster.api.get(f"/api/v1/namespaces/sluice-system/pods/{cluster.agent_of(node.name)}")["status"]["podIP"]
        self.server = Prometheus(folder, {"sluice-agent": f"{address}:9449"})
        self.server.wait('up{job="sluice-agent"} == 1')

    def __getattr__(self, name):
        return getattr(self.server, name)


def who_is_there(cluster):
    """Three pods on the card: one as it should be, one without a grant, one with a grant that it goes round."""
    add_pod(cluster, "good", 10, 30)
    add_pod(cluster, "bare", driver=OWN_DRIVER)
    add_pod(cluster, "sneaky", 5, 10, driver=OWN_DRIVER)
    for name in ("good", "bare", "sneaky"):
        cluster.wait_running(name)
    for name in ("bare", "sneaky"):
        cluster.wait_for(lambda name=name: "alloc 0" in cluster.kubectl("logs", name).stdout, 20, f"{name} holds the card")
        said = cluster.kubectl("logs", name).stdout
        assert " 32494 " in said, f"{name} sees the whole card, as the driver without a limit shows it: {said}"


def reported(cluster, metrics):
    metrics.wait("sluice_card_strangers == 2")
    metrics.wait('sluice_stranger_memory_used_mib{namespace="default",pod="bare",container="c",process_name="card_probe"} > 300')
    metrics.wait('sluice_stranger_memory_used_mib{namespace="default",pod="sneaky",container="c"} > 300')
    assert not metrics.query('sluice_stranger_memory_used_mib{pod="good"}')
    metrics.wait('sluice_enforced{pod="good",container="c"} == 1')
    metrics.wait('sluice_enforced{pod="sneaky",container="c"} == 0')
    metrics.wait('sluice_not_enforced_info{pod="sneaky",reason="a process of it uses the card past Sluice\'s library"} == 1')
    cluster.wait_for(lambda: events(cluster, "bare"), 20, "an event about bare")
    assert "(card_probe) of container 'c' of pod default/bare uses card 0" in events(cluster, "bare")[0], events(cluster, "bare")
    assert events(cluster, "bare")[0].endswith("without a grant")
    cluster.wait_for(lambda: events(cluster, "sneaky"), 20, "an event about sneaky")
    assert events(cluster, "sneaky")[0].endswith("past Sluice's library: its limits do not hold"), events(cluster, "sneaky")
    assert not events(cluster, "good")
    assert len(events(cluster, "bare")) == 1, events(cluster, "bare")
    print("ok    a card used without a grant, and one used past the library: events, metrics, by pod and container")


def figures(cluster, metrics, node):
    from prometheus_test import promtool
    good = '{namespace="default",pod="good",container="c",node="node-a",gpu="0"}'
    assert metrics.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED" + good) == 0.3
    assert metrics.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED" + good) == 10487
    assert metrics.value('sum(DCGM_CUSTOM_CONTAINER_CP_ALLOCATED{gpu="0"})') == 0.4
    assert abs(metrics.value("DCGM_CUSTOM_DEV_FB_ALLOCATED") - 15 / 31) < 1e-9
    assert metrics.value("DCGM_CUSTOM_ALLOCATE_MODE") == 2
    metrics.wait(f"sluice_container_memory_used_mib{good} > 300")
    metrics.wait(f"DCGM_CUSTOM_PROCESS_MEM_USED{{pod=\"good\",process_name=\"card_probe\"}} > 300")
    checked = promtool("check", "metrics", text=cluster.metrics(node))
    odd = [line for line in (checked.stdout + checked.stderr).splitlines() if line.startswith("sluice_") and "camelCase" not in line]
    assert checked.returncode in (0, 3) and not odd, checked.stdout + checked.stderr
    print("ok    Prometheus has the numbers of the pods' requests from the running agent")


def tools_agree(cluster):
    add_pod(cluster, "verified", 2, 5, command="sluice verify", image="sluice/agent:0.1")
    cluster.wait_phase("verified", "Succeeded")
    said = cluster.kubectl("logs", "verified").stdout
    assert said.endswith("the limits are in force\n") and "card 0: memory by NVML: 2097 MiB" in said, said
    print("ok    sluice verify inside a pod: the limits are in force")
    environment = {"PATH": f"{os.environ['SLUICE_BUILD']}/bin:{cluster.programs}:/usr/bin:/bin", "KUBECONFIG": cluster.kubeconfig,
                   "HOME": str(cluster.directory)}
    shown = subprocess.run([f"{cluster.programs}/kubectl", "inspect", "cgpu", "-d", "node-a"], env=environment, text=True, capture_output=True)
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["good", "default", "10", "30"] in rows and ["sneaky", "default", "5", "10"] in rows, shown.stdout
    assert ["Allocated", ":", "15", "(48%)"] in rows and ["Allocated", "Core", ":", "40", "(40%)"] in rows, shown.stdout
    print("ok    kubectl inspect cgpu says the same")


def stopped(cluster, node):
    """The policy is changed: those past the library are ended, who keeps to it is not, nor a pod of kube-system."""
    add_pod(cluster, "system", namespace="kube-system", driver=OWN_DRIVER)
    cluster.wait_for(lambda: cluster.pod("system", "kube-system")["status"].get("phase") == "Running", 30, "the system's pod runs")
    cluster.apply(cluster.manifest.replace("        - --whole-cards\n", "        - --whole-cards\n        - --stranger=stop\n        - --allow-disable\n"))
    cluster.wait_for(lambda: cluster.pod("bare")["status"]["phase"] == "Failed", 90, "bare is stopped")
    cluster.wait_for(lambda: cluster.pod("sneaky")["status"]["phase"] == "Failed", 30, "sneaky is stopped")
    for name in ("bare", "sneaky"):
        ended = cluster.pod(name)["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 137, ended
        cluster.wait_for(lambda name=name: any(text.endswith("; it is stopped") for text in events(cluster, name)), 20, f"an event about {name}")
    good = cluster.pod("good")["status"]
    assert good["phase"] == "Running" and good["containerStatuses"][0]["restartCount"] == 0, good
    assert cluster.pod("system", "kube-system")["status"]["phase"] == "Running"
    log = cluster.kubectl("-n", "sluice-system", "logs", cluster.agent_of("node-a")).stdout
    assert " () uses" not in log, "a program that has ended is no stranger"
    print("ok    policy stop: both are ended, the others go on")


def switched_off(cluster, node):
    """CGPU_DISABLE where the agents allow it: more than was asked for can be had, that is said, and nobody is a stranger
    for it."""
    add_pod(cluster, "free", 2, 5, command="card_probe --alloc 5000 --sleep 1000", env=[{"name": "CGPU_DISABLE", "value": "true"}])
    cluster.wait_running("free")
    cluster.wait_for(lambda: "alloc 0" in cluster.kubectl("logs", "free").stdout, 20, "it has more than its 2 GiB")
    said = [line.split() for line in cluster.kubectl("logs", "free").stdout.splitlines() if line.startswith("card ")]
    assert len(said) == 1 and int(said[0][3]) > 32000, said
    time.sleep(5)  # in which a stranger would be stopped
    assert cluster.pod("free")["status"]["phase"] == "Running" and not events(cluster, "free"), cluster.describe("free")
    lines = [line for line in cluster.metrics(node).splitlines() if 'pod="free"' in line]
    assert any(line.startswith("sluice_enforced{") and line.endswith(" 0") for line in lines), lines
    assert any(line.startswith("sluice_not_enforced_info{") and "CGPU_DISABLE" in line for line in lines), lines
    assert any(line.startswith("sluice_container_units{") and line.endswith(" 2") for line in lines), lines
    add_pod(cluster, "too-much", 20, 5)  # beside 10 and 2 of 31
    time.sleep(3)
    assert not cluster.node_of("too-much"), "what the container asked for is taken, though it is held to nothing"
    print("ok    CGPU_DISABLE where it is allowed: no limits, the metrics say so, the share is taken all the same")


def main():
    node_world.enter()
    import images
    from node_install import InstalledCluster
    with InstalledCluster(images=[images.probe(node_world.folder())]) as cluster:
        node = cluster.add_sharing_node("node-a")
        cluster.install()
        cluster.wait_allocatable(node, {GPU_MEM: "31", GPU_CORE: "100"})
        metrics = Metrics(cluster, node)
        who_is_there(cluster)
        reported(cluster, metrics)
        figures(cluster, metrics, node)
        tools_agree(cluster)
        metrics.stop()
        stopped(cluster, node)
        switched_off(cluster, node)


if __name__ == "__main__":
    main()
    sys.exit(0)
