#!/usr/bin/env python3
"""deploy/ applies cleanly and is enough: the scheduler runs with nothing but the rights of its ServiceAccount, the second
scheduler's configuration is taken by a real kube-scheduler, the admission policy warns without a webhook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from sluice_cluster import GPU_CORE, GPU_MEM, SluiceCluster, wait_until

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
NAMESPACE = "sluice-system"


def apply(cluster, text):
    result = cluster.kubectl("apply", "-f", "-", stdin=text)
    assert result.returncode == 0, result.stderr
    return result


def service_account_kubeconfig(cluster):
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", "sluice-scheduler").stdout.strip()
    config = json.loads(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": token}
    path = cluster.directory / "service-account.kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


def check_rights(cluster):
    """Binds, wakes, writes an event and leads with the ServiceAccount's token alone."""
    cluster.stop_sluice()
    cluster.sluice_kubeconfig = service_account_kubeconfig(cluster)
    cluster.scheduler_arguments = ["--leader-elect", "--lease-namespace", NAMESPACE, "--advertise-url", cluster.url]
    cluster.start_sluice()
    cluster.add_node("a")
    wait_until(lambda: "\nsluice_scheduler_leading 1\n" in cluster.extender("/metrics"), 20, "leading")
    cluster.add_pod("p", 20, 50)
    cluster.wait_bound("p")
    cluster.add_pod("q", 20, 50)
    wait_until(lambda: cluster.events_of("q"), 10, "q refused")
    cluster.add_pod("big", 40, 50)
    wait_until(lambda: any("largest has 31 GiB" in text for text in cluster.events_of("big")), 15, "our own event")
    cluster.delete_pod("p")
    cluster.wait_bound("q", 10)
    # Other ServiceAccounts and this one have nothing more than that.
    who = f"system:serviceaccount:{NAMESPACE}:sluice-scheduler"
    for verb, what in (("delete", "pods"), ("update", "nodes"), ("get", "secrets"), ("create", "pods"), ("patch", "nodes")):
        answer = cluster.kubectl("auth", "can-i", verb, what, "-A", "--as", who)
        assert answer.stdout.strip() == "no", f"{who} may {verb} {what}"
    log = (cluster.directory / "sluice-scheduler.log").read_text()
    assert "forbidden" not in log, log
    print("ok    the ServiceAccount's rights are enough, and no more than enough")


def check_policy(cluster):
    apply(cluster, (DEPLOY / "manifests" / "policy.yaml").read_text())
    def job(limits):
        return json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "policy", "namespace": "default"},
                           "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [
                               {"name": "c", "image": "n", "resources": {"limits": limits}}]}}}})
    def warned(limits):
        result = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=job(limits))
        assert result.returncode == 0, result.stderr
        return "sluice:" in result.stderr
    wait_until(lambda: warned({GPU_MEM: "10", GPU_CORE: "33"}), 20, "a warning at 33 percent")
    assert warned({GPU_CORE: "30"})
    assert not warned({GPU_MEM: "10", GPU_CORE: "30"})
    assert not warned({GPU_MEM: "10"})
    assert not warned({})
    print("ok    the admission policy warns of what the webhook warns of, without one")


def check_second_scheduler(cluster):
    """The shipped configuration, its file and address replaced by this cluster's."""
    text = (DEPLOY / "scheduler" / "second-scheduler-config.yaml").read_text()
    text = text.replace("https://sluice-scheduler.sluice-system.svc", cluster.url).replace("enableHTTPS: true", "enableHTTPS: false")
    text = re.sub(r"    tlsConfig:\n(      \S+: \S+\n)+", "", text)
    text += f"clientConnection:\n  kubeconfig: {cluster.control.directory}/scheduler.kubeconfig\nleaderElection:\n  leaderElect: false\n"
    path = cluster.directory / "second.yaml"
    path.write_text(text)
    from sluice_cluster import free_port
    log = open(cluster.directory / "second-scheduler.log", "wb")
    process = subprocess.Popen([f"{cluster.programs}/kube-scheduler", "--config", str(path), "--secure-port", str(free_port()),
                                "--bind-address", "127.0.0.1"], stdout=log, stderr=log)
    try:
        cluster.delete_pod("q")
        cluster.add_pod("second", 10, 30, schedulerName="sluice")
        cluster.wait_bound("second", 30)
        assert cluster.cards_of("second") == [0]
    finally:
        process.terminate()
        process.wait()
    print("ok    a second scheduler with the shipped configuration binds through the extender")


def main():
    with SluiceCluster() as cluster:
        apply(cluster, (DEPLOY / "manifests" / "scheduler.yaml").read_text())
        secrets = subprocess.run([DEPLOY / "scheduler" / "make-secrets"], capture_output=True, text=True, check=True,
                                 env={**os.environ, "SLUICE_NAMESPACE": NAMESPACE})
        apply(cluster, secrets.stdout)
        apply(cluster, (DEPLOY / "manifests" / "scheduler.yaml").read_text())  # again: nothing changes, nothing fails
        print("ok    manifests and secrets apply")
        check_rights(cluster)
        check_policy(cluster)
        check_second_scheduler(cluster)


if __name__ == "__main__":
    main()
    sys.exit(0)
