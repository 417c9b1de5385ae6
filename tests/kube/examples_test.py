#!/usr/bin/env python3
"""examples/kubernetes/ against a real control plane: each is applied with kubectl and has to do what its comment says."""

import json
import sys
import urllib.error
from pathlib import Path

from sluice_cluster import GPU_CORE, GPU_MEM, SluiceCluster, wait_until

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "kubernetes"


def new_namespace(cluster, name):
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": name}})

    def has_account():
        try:
            return cluster.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
        except urllib.error.HTTPError:
            return None
    wait_until(has_account, 20, f"service account of {name}")


def apply(cluster, name, namespace="default"):
    result = cluster.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / name))
    assert result.returncode == 0, result.stderr


def pod_of(name, memory=None, core=None, **extra):
    limits = {} if memory is None else {GPU_MEM: str(memory), GPU_CORE: str(core)}
    return {"metadata": {"name": name, "labels": extra.pop("labels", {})}, "spec": {
        "containers": [{"name": "c", "image": "none", "resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}], **extra}}


def refusal(cluster, namespace, pod):
    """The API server's words, empty when it takes the pod."""
    try:
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)
        return ""
    except urllib.error.HTTPError as error:
        return json.loads(error.read())["message"]


def quota(cluster):
    new_namespace(cluster, "team")
    apply(cluster, "quota.yaml", "team")
    wait_until(lambda: cluster.api.get("/api/v1/namespaces/team/resourcequotas/shared-cards")["status"].get("hard"), 20,
               "the quota is counted")
    assert refusal(cluster, "team", pod_of("a", 20, 60)) == ""
    assert refusal(cluster, "team", pod_of("no-card")) == ""
    for name, memory, core, short in (("b", 21, 20, GPU_MEM), ("c", 10, 65, GPU_CORE)):
        said = refusal(cluster, "team", pod_of(name, memory, core))
        assert "exceeded quota: shared-cards" in said and f"requests.{short}" in said, said
    assert refusal(cluster, "team", pod_of("d", 20, 60)) == ""
    print(f"ok    quota: 40 units and 120 percent are taken, more is refused: {said}")


def limits(cluster):
    new_namespace(cluster, "gpu-only")
    apply(cluster, "limits.yaml", "gpu-only")
    said = refusal(cluster, "gpu-only", pod_of("large", 17, 20))
    assert f"maximum {GPU_MEM} usage per Container is 16" in said, said
    said = refusal(cluster, "gpu-only", pod_of("quick", 4, 55))
    assert f"maximum {GPU_CORE} usage per Container is 50" in said, said
    assert refusal(cluster, "gpu-only", pod_of("default")) == ""
    path = "/api/v1/namespaces/gpu-only/pods/default"
    wait_until(lambda: cluster.api.get(path)["spec"].get("nodeName"), 15, "the pod with defaults is bound")
    pod = cluster.api.get(path)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU_MEM: "4", GPU_CORE: "10"}, pod["spec"]
    assert json.loads(pod["metadata"]["annotations"]["sluice.dev/allocation"])["cards"][0]["units"] == 4
    print("ok    limits: larger containers are refused, one that asks for nothing gets 4 units and 10 percent of a card")


def ready(cluster, name):
    cluster.api.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, "strategic-merge-patch")


def budget_and_priorities(cluster):
    """Two inference pods under the budget and one without share a card; interactive work needs two of the three places."""
    apply(cluster, "priorities.yaml")
    apply(cluster, "disruption-budget.yaml")
    cluster.add_node("one-card", 1)
    pinned = {"nodeSelector": {"kubernetes.io/hostname": "one-card"}}
    template = pod_of("x", 10, 30, labels={"app": "inference"}, priorityClassName="gpu-batch", **pinned)
    del template["metadata"]["name"]
    cluster.api.post("/apis/apps/v1/namespaces/default/replicasets", {"metadata": {"name": "inference"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "inference"}}, "template": template}})
    names = wait_until(lambda: [pod["metadata"]["name"] for pod in cluster.api.get(
        "/api/v1/namespaces/default/pods?labelSelector=app%3Dinference")["items"]][1:] and [
            pod["metadata"]["name"] for pod in cluster.api.get(
                "/api/v1/namespaces/default/pods?labelSelector=app%3Dinference")["items"]], 20, "two inference pods")
    for name in names:
        cluster.wait_bound(name)
        ready(cluster, name)
    budget = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/inference"
    wait_until(lambda: cluster.api.get(budget)["status"].get("disruptionsAllowed") == 1, 20, "one may be away")
    cluster.api.post("/api/v1/namespaces/default/pods", pod_of("plain", 10, 30, priorityClassName="gpu-batch", **pinned))
    cluster.wait_bound("plain")

    # Of the same kind: waits, pushes nobody.
    cluster.api.post("/api/v1/namespaces/default/pods", pod_of("more", 20, 60, priorityClassName="gpu-batch", **pinned))
    wait_until(lambda: cluster.events_of("more"), 15, "an event of the pod that waits")
    cluster.api.post("/api/v1/namespaces/default/pods",
                     pod_of("notebook", 20, 60, priorityClassName="gpu-interactive", **pinned))
    wait_until(lambda: cluster.node_of("notebook"), 30, "the interactive pod takes its place")
    left = {pod["metadata"]["name"] for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]
            if pod["spec"].get("nodeName")}
    assert "plain" not in left and len(left & set(names)) == 1, f"bound are {left}, of {names} and plain"
    assert cluster.node_of("more") is None
    print("ok    priorities and budget: interactive work took two places, one inference pod stays, batch work pushed nobody")


def main():
    with SluiceCluster() as cluster:
        cluster.add_node("large", 4)
        quota(cluster)
        limits(cluster)
        budget_and_priorities(cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
