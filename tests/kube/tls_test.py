#!/usr/bin/env python3
"""TLS with client identity, and two replicas of which kube-scheduler knows the follower, under load.

Who shows no certificate, or one of another name, may read but not call the extender's verbs. A follower hands every call
on to the leader over TLS with its own certificate; when the leader is killed in the middle of the load the follower takes
over, and nothing is bound twice or over capacity.
"""

import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

from faults_test import Checker, held
from sluice_cluster import SluiceCluster, free_port, wait_until

VERBS = ("filter", "prioritize", "bind", "preempt")
PODS = 120


def call(url, context, path, body=None):
    """Status and text; status 0 where TLS itself fails."""
    request = urllib.request.Request(url + path, data=None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, ssl.SSLError, ConnectionError):
        return 0, ""


def context_of(cluster, name=None):
    context = ssl.create_default_context(cafile=str(cluster.ca_file))
    if name is not None:
        context.load_cert_chain(str(cluster.directory / "tls" / f"{name}.crt"), str(cluster.directory / "tls" / f"{name}.key"))
    return context


def identity(cluster):
    cluster.authority.issue("somebody", "/CN=somebody")
    foreign = cluster.directory / "tls" / "foreign"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                    "/CN=kube-scheduler", "-keyout", f"{foreign}.key", "-out", f"{foreign}.crt"], check=True, capture_output=True)
    body = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a", "Pod": {}, "NodeNames": ["a"],
            "NodeNameToMetaVictims": {}}
    for verb in VERBS:
        for who, words in ((None, "shows none"), ("somebody", "is somebody")):
            status, text = call(cluster.url, context_of(cluster, who), f"/{verb}", body)
            assert status == 403 and words in text, (verb, who, status, text)
        assert call(cluster.url, context_of(cluster, "foreign"), f"/{verb}", body)[0] == 0, "a certificate of another CA"
        assert call(cluster.url, context_of(cluster, "client"), f"/{verb}", body)[0] == 200, verb
    for path in ("/healthz", "/readyz", "/metrics", "/debug/state"):
        assert call(cluster.url, context_of(cluster), path)[0] == 200, path
    review = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": {"spec": {"containers": []}}}}
    assert call(cluster.url, context_of(cluster), "/webhook", review)[0] == 200
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = context_of(cluster, "client")
        context.minimum_version = context.maximum_version = version
        assert call(cluster.url, context, "/filter", body)[0] == 200, version
    print("ok    the extender's verbs are for known certificates; probes, metrics and the webhook are open")


class Replicas:
    """The first is the one that kube-scheduler knows."""

    def __init__(self, cluster):
        self.cluster, self.ports = cluster, [cluster.port, free_port()]
        tls = cluster.directory / "tls"
        self.arguments = ["--leader-elect", "--lease-namespace", "default", "--forward-ca", cluster.ca_file, "--forward-cert",
                          tls / "sluice.crt", "--forward-key", tls / "sluice.key"]
        self.processes = [None, None]

    def start(self, i):
        url = f"https://127.0.0.1:{self.ports[i]}"
        self.processes[i] = self.cluster.start_replica(self.ports[i], [*self.arguments, "--advertise-url", url])
        wait_until(lambda: call(url, context_of(self.cluster), "/readyz")[0] == 200, 20, f"replica {i} ready")

    def metric(self, i, name):
        text = call(f"https://127.0.0.1:{self.ports[i]}", context_of(self.cluster), "/metrics")[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name) and "_bucket" not in line)

    def stop(self):
        for process in self.processes:
            if process is not None:
                process.terminate()
                process.wait(timeout=20)


def load(cluster, name, kill=None):
    started = time.monotonic()
    for i in range(PODS):
        cluster.add_pod(f"{name}-{i}", 2, 5)
        if kill and i == PODS // 2:
            kill()
    def unbound():
        return [pod["metadata"]["name"] for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]
                if not pod["spec"].get("nodeName")]
    wait_until(lambda: not unbound(), 90, f"all pods bound; {unbound()[:3]} wait")
    taken = sum(units for units, _ in held(cluster).values())
    assert taken == 2 * PODS, f"{taken} units held by {PODS} pods"
    return time.monotonic() - started


def clean(cluster):
    for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]:
        cluster.delete_pod(pod["metadata"]["name"])
    wait_until(lambda: not any(node["pods"] for node in cluster.state()["nodes"]), 15, "nothing is held")


def main():
    with SluiceCluster(tls=True, scheduler_arguments=["--client-name", "kube-scheduler", "--client-name", "sluice-scheduler"],
                       client_ca=True) as cluster:
        for name in ("a", "b", "c"):
            cluster.add_node(name, 4)
        identity(cluster)
        cluster.stop_sluice()
        replicas, checker = Replicas(cluster), Checker(cluster)
        checker.start()
        try:
            replicas.start(1)
            wait_until(lambda: replicas.metric(1, "sluice_scheduler_leading") == 1, 20, "the other one leads")
            replicas.start(0)
            took = load(cluster, "forwarded")
            assert replicas.metric(0, "sluice_scheduler_leading") == 0
            assert replicas.metric(0, "sluice_scheduler_binds_total") == 0
            assert replicas.metric(1, "sluice_scheduler_binds_total") == PODS
            calls = replicas.metric(0, 'sluice_scheduler_request_duration_seconds_count{verb="bind"}')
            assert calls >= PODS, f"{calls} binds went through the follower"
            print(f"ok    {PODS} pods bound in {took:.1f} s by the leader, every call through the follower")
            clean(cluster)

            def kill():
                replicas.processes[1].kill()
                replicas.processes[1].wait()
                replicas.processes[1] = None
            took = load(cluster, "orphaned", kill)
            assert replicas.metric(0, "sluice_scheduler_leading") == 1
            more = replicas.metric(0, "sluice_scheduler_binds_total")
            assert 0 < more < PODS, f"{more} bound by the new leader"
            print(f"ok    leader killed under load: the follower took over, {PODS} pods bound in {took:.1f} s, {more:.0f} of them by it")
        finally:
            replicas.stop()
            checker.stopping.set()
            checker.join()
        assert not checker.faults, checker.faults[:5]
        print(f"ok    no card over capacity in {checker.looks} looks")


if __name__ == "__main__":
    main()
    sys.exit(0)
