#!/usr/bin/env python3
"""Installing and removing, as docs/kubernetes.md says it: by the manifests, with no more rights than they give; an upgrade
of the agents under running pods; afterwards node objects and nodes are as they were."""

import json
import subprocess
import sys

import node_world

DEVICE_PLUGIN_LEFTOVERS = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu")


def node_picture(cluster, node):
    """What an agent could have changed on the Node object. The kubelet keeps names of resources it once knew, allocatable
    0, until it restarts."""
    found = cluster.node_object(node.name)
    capacity = {name: value for name, value in found["status"]["allocatable"].items()
                if not (name in DEVICE_PLUGIN_LEFTOVERS and value == "0") and name != "ephemeral-storage"}
    taints = [one for one in found["spec"].get("taints", []) if not one["key"].startswith("node.kubernetes.io/")]
    return {"labels": found["metadata"]["labels"], "annotations": found["metadata"]["annotations"], "allocatable": capacity, "taints": taints,
            "conditions": sorted(one["type"] for one in found["status"]["conditions"])}


def files_picture(node):
    """Files, mounts and sockets that an agent could have left."""
    places = ("/opt", "/var/lib/sluice", "/run/sluice", "/run/cdi", "/etc/cdi", "/var/lib/kubelet/device-plugins")
    listed = node.run("sh", "-c", f"find {' '.join(places)} ! -type d 2>/dev/null | sort; true").splitlines()
    mounts = [line.split()[1] for line in node.run("cat", "/proc/self/mounts").splitlines()
              if line.split()[1].startswith(("/run/sluice", "/var/lib/sluice", "/opt/sluice"))]
    ours = [line for line in listed if not line.endswith(("kubelet.sock", "kubelet_internal_checkpoint"))]
    return ours, mounts


def pod(cluster, name, node):
    import node_pods_test
    made = node_pods_test.pod_of(name, 4, 20)
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    node_pods_test.create(cluster, made)
    cluster.wait_running(name)


def rights(cluster, a, b):
    """The agents' ServiceAccount reads pods, changes its own node's labels and status, and nothing else."""
    who = "system:serviceaccount:sluice-system:sluice-agent"
    for verb, what in (("patch", "pods"), ("update", "pods"), ("delete", "pods"), ("create", "pods"), ("get", "secrets"), ("update", "nodes"), ("delete", "nodes")):
        answer = cluster.kubectl("auth", "can-i", verb, what, "-A", "--as", who)
        assert answer.stdout.strip() == "no", f"{who} may {verb} {what}"
    agent = cluster.agent_of(a.name)
    token = cluster.kubectl("-n", "sluice-system", "create", "token", "sluice-agent", "--bound-object-kind=Pod", f"--bound-object-name={agent}").stdout.strip()
    config = json.loads(open(cluster.kubeconfig, encoding="utf-8").read())
    config["users"][0]["user"] = {"token": token}
    path = cluster.directory / "agent.kubeconfig"
    path.write_text(json.dumps(config))

    def patch(node, what):
        return subprocess.run([f"{cluster.programs}/kubectl", "--kubeconfig", str(path), "patch", "node", node.name, "-p", json.dumps(what)],
                              capture_output=True, text=True)
    label = {"metadata": {"labels": {"sluice.dev/trial": "x"}}}
    own = patch(a, label)
    assert own.returncode == 0, own.stderr
    assert patch(a, {"metadata": {"labels": {"sluice.dev/trial": None}}}).returncode == 0
    other = patch(b, label)
    assert other.returncode != 0 and f'may not change node "{b.name}"' in other.stderr, other.stderr
    spec = patch(a, {"spec": {"unschedulable": True}})
    assert spec.returncode != 0 and "may not change a node's spec" in spec.stderr, spec.stderr
    print("ok    an agent's token changes its own node's labels and status, no other node, no spec, no pod")


def upgrade(cluster, node):
    """A rollout of the agents: running pods go on under their grants, new ones come after it."""
    import node_truth
    pod(cluster, "stays", node)
    before = cluster.pod("stays")["status"]["containerStatuses"][0]["containerID"]
    assert cluster.kubectl("-n", "sluice-system", "rollout", "restart", "daemonset/sluice-agent").returncode == 0
    cluster.wait_agents()
    after = cluster.pod("stays")
    assert after["status"]["containerStatuses"][0]["containerID"] == before
    node_truth.check_running(node, after)
    pod(cluster, "new", node)
    node_truth.check_running(node, cluster.pod("new"))
    print("ok    a rollout of the agents leaves running pods as they are")


def remove(cluster, nodes, pictures):
    from node_install import DEPLOY, MODE
    environment = {"PATH": f"{cluster.programs}:/usr/bin:/bin", "KUBECONFIG": str(cluster.kubeconfig),
                   "HOME": str(cluster.directory)}  # kubectl caches there

    def run():
        return subprocess.run([DEPLOY / "remove"], env=environment, capture_output=True, text=True)
    cluster.unwire_scheduler()
    refused = run_with_pods(cluster, environment, DEPLOY)
    assert refused.returncode == 1 and "default/stays" in refused.stderr, refused.stderr + cluster.pods_text()
    assert cluster.pod("stays")["status"]["phase"] == "Running"
    print(f"ok    removal stops where a pod still holds a share: {refused.stderr.splitlines()[1].strip()[:150]}")
    cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    done = run()
    assert done.returncode == 0, done.stderr
    for node, (picture, files_before) in zip(nodes, pictures):
        cluster.wait_for(lambda node=node, picture=picture: node_picture(cluster, node) == picture, 30,
                         f"{node.name} as it was: {node_picture(cluster, node)}\nwas {picture}")
        assert files_picture(node) == files_before, f"{node.name}: there are {files_picture(node)}, were {files_before}"
    for kind in ("clusterrole", "clusterrolebinding", "validatingadmissionpolicy", "validatingadmissionpolicybinding", "namespace"):
        assert "sluice" not in cluster.kubectl("get", kind, "-o", "name").stdout, kind
    print("ok    removed: node objects, files, mounts, rights and namespace are as they were")
    assert MODE in cluster.node_object(nodes[0].name)["metadata"]["labels"]


def run_with_pods(cluster, environment, deploy):
    return subprocess.run([deploy / "remove"], env={**environment, "SLUICE_REMOVE_SECONDS": "15"}, capture_output=True, text=True)


def main():
    node_world.enter()
    import images
    from node_install import InstalledCluster
    with InstalledCluster(images=[images.probe(node_world.folder())]) as cluster:
        nodes = [cluster.add_sharing_node(name) for name in ("node-a", "node-b")]
        pictures = [(node_picture(cluster, node), files_picture(node)) for node in nodes]
        cluster.install()
        for node in nodes:
            cluster.wait_allocatable(node, {"aliyun.com/gpu-mem": "31", "aliyun.com/gpu-core.percentage": "100", "nvidia.com/gpu": "0"})
        print("ok    installed by the manifests")
        cluster.apply(cluster.manifest)  # again: nothing changes, nothing fails
        rights(cluster, *nodes)
        upgrade(cluster, nodes[0])
        remove(cluster, nodes, pictures)


if __name__ == "__main__":
    main()
    sys.exit(0)
