#!/usr/bin/env python3
"""The Kubernetes client against a real API server: server-side apply, preconditions, lists in pages, watches that end; a
watch too far behind (410) after an outage; a token that is revoked and replaced."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from proxy import Proxy
from sluice_cluster import SluiceCluster, wait_until


def library(cluster):
    program = Path(os.environ["SLUICE_BUILD"]) / "tests" / "kube_live"
    result = subprocess.run([program, "--gtest_brief=1"], env={**os.environ, "KUBECONFIG": cluster.kubeconfig}, text=True,
                            capture_output=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    print("ok    " + " ".join(result.stdout.split("[  PASSED  ]")[-1].split()) + " of the client library pass")


def metric(cluster, name):
    return sum(float(line.split()[-1]) for line in cluster.extender("/metrics").splitlines() if line.startswith(f"{name} "))


def held(cluster):
    return sorted(pod["pod"] for node in cluster.state()["nodes"] for pod in node["pods"])


def too_far_behind(cluster):
    """While the scheduler hears nothing pods come and go, the history is compacted and the API server starts anew."""
    proxy = Proxy(cluster.control.state()["server"])
    cluster.stop_sluice()
    cluster.through(proxy.url, "proxy")
    cluster.start_sluice()
    for i in range(6):
        cluster.add_pod(f"p{i}", 5, 5)
        cluster.wait_bound(f"p{i}")
    wait_until(lambda: len(held(cluster)) == 6, 5, "all are counted")
    lists, errors = metric(cluster, "sluice_scheduler_lists_total"), metric(cluster, "sluice_scheduler_watch_errors_total")
    proxy.refuse()
    for i in range(4):
        cluster.delete_pod(f"p{i}")
    cluster.add_node("late")
    etcd = cluster.control.started["etcd"][0]
    gateway = etcd[etcd.index("--advertise-client-urls") + 1]
    revision = cluster.api.get("/api/v1/nodes")["metadata"]["resourceVersion"]
    request = urllib.request.Request(f"{gateway}/v3/kv/compaction", json.dumps({"revision": revision, "physical": True}).encode())
    urllib.request.urlopen(request, timeout=20).read()
    cluster.control.kill("kube-apiserver")
    cluster.control.restart("kube-apiserver")

    def up():
        try:
            return cluster.api.get("/api/v1/nodes")
        except OSError:
            return None
    wait_until(up, 60, "API server back")
    assert len(held(cluster)) == 6, "it has heard nothing"
    proxy.take()
    wait_until(lambda: held(cluster) == ["default/p4", "default/p5"], 60, f"phantoms are gone; held are {held(cluster)}")
    wait_until(lambda: len(cluster.state()["nodes"]) == 2, 10, "the new node is there")
    more = metric(cluster, "sluice_scheduler_lists_total") - lists
    assert more >= 2, f"{more} new lists: versions that far back should be gone"
    print(f"ok    versions gone (410): {more:.0f} new lists, 4 phantoms dropped, 1 node found; "
          f"{metric(cluster, 'sluice_scheduler_watch_errors_total') - errors:.0f} watches failed during the outage")
    for i in (4, 5):
        cluster.delete_pod(f"p{i}")
    proxy.stop()


def new_token(cluster, anchor):
    """A token that ends with the pod it is bound to."""
    cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": anchor}, "spec": {
        "serviceAccountName": "client", "schedulerName": "nobody", "containers": [{"name": "c", "image": "none"}]}})
    result = cluster.kubectl("create", "token", "client", "--bound-object-kind", "Pod", "--bound-object-name", anchor)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def token_replaced(cluster):
    cluster.api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "client"}})
    cluster.api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
        "metadata": {"name": "client"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "client", "namespace": "default"}]})
    file = cluster.directory / "token"
    old = new_token(cluster, "anchor-1")
    file.write_text(old + "\n")
    config = json.loads(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"tokenFile": str(file)}
    cluster.sluice_kubeconfig = str(cluster.directory / "token.kubeconfig")
    Path(cluster.sluice_kubeconfig).write_text(json.dumps(config))
    cluster.stop_sluice()
    cluster.start_sluice()
    cluster.add_pod("before", 5, 5)
    cluster.wait_bound("before")
    cluster.delete_pod("anchor-1")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": old}}
    wait_until(lambda: not cluster.api.post("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"].get("authenticated"), 40,
               "the old token is refused")
    file.write_text(new_token(cluster, "anchor-2") + "\n")
    started = time.monotonic()
    cluster.add_pod("after", 5, 5)
    cluster.wait_bound("after", 10)
    print(f"ok    a token revoked and replaced in its file: the next pod was bound after {time.monotonic() - started:.2f} s")


def main():
    with SluiceCluster() as cluster:
        cluster.add_node("a", 2)
        for part in (library, too_far_behind, token_replaced):
            part(cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
