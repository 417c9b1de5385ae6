#!/usr/bin/env python3
"""kubectl apply says at once what is wrong: warnings by default, refusals by setting, for pods and every kind of template.

Also: pods that ask get the second scheduler's name and the toleration, templates are left alone.
"""

import json
import sys

from sluice_cluster import GPU_CORE, GPU_MEM, SluiceCluster, wait_until

LABELS = {"app": "x"}


def pod_template(core):
    return {"metadata": {"labels": LABELS}, "spec": {"restartPolicy": "Never", "containers": [
        {"name": "c", "image": "none", "resources": {"limits": {GPU_MEM: "10", GPU_CORE: str(core)}}}]}}


def always(template):
    template["spec"]["restartPolicy"] = "Always"
    return template


def manifests(core):
    selector = {"matchLabels": LABELS}
    return [
        {"apiVersion": "v1", "kind": "Pod", "spec": pod_template(core)["spec"]},  # no labels: a ReplicaSet would adopt it
        {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod_template(core)}},
        {"apiVersion": "batch/v1", "kind": "CronJob",
         "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": pod_template(core)}}}},
        {"apiVersion": "apps/v1", "kind": "Deployment",
         "spec": {"replicas": 0, "selector": selector, "template": always(pod_template(core))}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet",
         "spec": {"replicas": 0, "serviceName": "x", "selector": selector, "template": always(pod_template(core))}},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet",
         "spec": {"replicas": 0, "selector": selector, "template": always(pod_template(core))}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {
            "selector": selector, "template": always(pod_template(core))}},
    ]


def apply(cluster, manifest, name):
    manifest.setdefault("metadata", {})["name"] = name
    manifest["metadata"]["namespace"] = "default"
    return cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def check_warnings(cluster):
    for number, manifest in enumerate(manifests(33)):
        result = apply(cluster, manifest, f"wrong-{number}")
        assert result.returncode == 0, result.stderr
        assert "Warning: sluice: " in result.stderr and "multiple of 5" in result.stderr, (manifest["kind"], result.stderr)
    for number, manifest in enumerate(manifests(30)):
        result = apply(cluster, manifest, f"right-{number}")
        assert result.returncode == 0 and "sluice" not in result.stderr, (manifest["kind"], result.stderr)
    print("ok    a warning for each of 7 kinds at 33 percent, none at 30")


def check_describe(cluster):
    pods = lambda: [pod for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]
                    if pod["metadata"]["name"].startswith("wrong-1-")]
    name = wait_until(pods, 20, "the Job's pod")[0]["metadata"]["name"]
    wait_until(lambda: "multiple of 5, at least 5, have 33" in cluster.kubectl("describe", "pod", name).stdout, 15,
               "kubectl describe pod says rule, need and have")
    assert cluster.pod(name)["status"]["phase"] == "Pending"
    print("ok    the Job's pod is Pending and kubectl describe says why")


def check_patch(cluster):
    pod = cluster.pod("right-0")
    assert pod["spec"]["schedulerName"] == "sluice", pod["spec"]["schedulerName"]
    assert {"key": "sluice.dev/sharing", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    job = cluster.api.get("/apis/batch/v1/namespaces/default/jobs/right-1")
    assert "schedulerName" not in job["spec"]["template"]["spec"] or \
        job["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"
    result = apply(cluster, {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "n"}]}}, "plain")
    assert result.returncode == 0 and cluster.pod("plain")["spec"]["schedulerName"] == "default-scheduler"
    print("ok    pods that ask get scheduler and toleration, templates and other pods are left alone")


def check_refusals(cluster):
    for number, manifest in enumerate(manifests(33)):
        result = apply(cluster, manifest, f"refused-{number}")
        assert result.returncode != 0 and "multiple of 5" in result.stderr, (manifest["kind"], result.stderr)
    print("ok    with --webhook-refuse all 7 kinds are refused")


def check_away(cluster):
    """While no scheduler runs: Fail closes, Ignore opens; both as documented."""
    cluster.stop_sluice()
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/sluice"
    for number, manifest in enumerate(manifests(30)):
        result = apply(cluster, manifest, f"closed-{number}")
        assert result.returncode != 0 and "failed calling webhook" in result.stderr, (manifest["kind"], result.stderr)
    cluster.api.patch(path, [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}], "json-patch")
    wait_until(lambda: apply(cluster, manifests(33)[0], "open").returncode == 0, 10, "taken without the webhook")
    for number, manifest in enumerate(manifests(33)):
        result = apply(cluster, manifest, f"open-{number}")
        assert result.returncode == 0 and "sluice" not in result.stderr, (manifest["kind"], result.stderr)
    cluster.start_sluice()  # refuses again, and says in the pod's event what was let in meanwhile
    wait_until(lambda: any("multiple of 5" in text for text in cluster.events_of("open")), 20, "the pod is told")
    assert apply(cluster, manifests(33)[0], "late").returncode != 0
    print("ok    while it is away: failurePolicy Fail refuses all 7 kinds, Ignore takes them and their pods are told later")


def main():
    with SluiceCluster(tls=True) as cluster:
        cluster.add_node("b")
        cluster.add_webhook()
        check_warnings(cluster)
        check_describe(cluster)
        cluster.stop_sluice()
        cluster.scheduler_arguments += ["--webhook-refuse", "--webhook-scheduler-name", "sluice", "--webhook-toleration",
                                        "sluice.dev/sharing"]
        cluster.start_sluice()
        check_refusals(cluster)
        for number, manifest in enumerate(manifests(30)[:2]):
            cluster.kubectl("delete", manifest["kind"].lower(), f"right-{number}", "--wait=true", "--grace-period=0", "--force")
            assert apply(cluster, manifest, f"right-{number}").returncode == 0
        check_patch(cluster)
        check_away(cluster)
    sys.exit(0)


if __name__ == "__main__":
    main()
