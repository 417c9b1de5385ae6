#!/usr/bin/env python3
"""Bad input over the wire: a running scheduler answers every body that it cannot use with a clear 4xx, does nothing by halves,
and goes on binding pods while clients are slow, huge, cut off or many. Then its metrics: complete, in the format that
Prometheus reads, and true.
"""

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import time

from sluice_cluster import SluiceCluster, wait_until

VERBS = ("filter", "prioritize", "bind", "preempt", "webhook")
POD = {"metadata": {"uid": "u", "namespace": "default", "name": "x"}, "spec": {"containers": [
    {"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "10", "aliyun.com/gpu-core.percentage": "30"}}}]}}
BIND = {"PodUID": "u", "PodNamespace": "default", "PodName": "x", "Node": "a"}


def post(cluster, path, body):
    """(status, text); body: bytes, or a value that is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=30)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def raw(cluster):
    return socket.create_connection(("127.0.0.1", cluster.port), timeout=30)


def status_of(connection):
    try:
        line = connection.recv(4096).decode(errors="replace").split("\r\n")[0]
    except OSError:
        return None
    return int(line.split()[1]) if line.startswith("HTTP/1.1 ") else None


def refused(cluster, path, body, words=""):
    status, text = post(cluster, path, body)
    assert status == 400, (path, body[:80] if isinstance(body, bytes) else body, status, text[:300])
    said = json.loads(text)["error"]
    assert words in said and len(said) < 1000, (path, words, said)


def still_right(cluster, name):
    """Nothing is held or assumed, and a pod is bound without delay and taken away again."""
    state = cluster.state()
    assert all(card["free_units"] == 31 for node in state["nodes"] for card in node["cards"]), state
    assert "sluice_scheduler_assumed_pods 0" in cluster.extender("/metrics")
    started = time.monotonic()
    cluster.add_pod(name, 10, 30)
    cluster.wait_bound(name, 5)
    took = time.monotonic() - started
    cluster.delete_pod(name)
    wait_until(lambda: all(card["free_units"] == 31 for node in cluster.state()["nodes"] for card in node["cards"]), 5,
               "nothing is held")
    return took


def not_json(cluster):
    bodies = [b"", b"{", b"null", b"[]", b"17", b'"text"', b"\xff\xfe{}", b'{"Pod": 1e9999}', b"[" * 200_000, b'{"a":' * 100_000,
              b'{"Pod":{}} trailing', b"Pod: {}\nNodeNames: [a]\n", b"\x00" * 100]
    for verb in VERBS:
        for body in bodies:
            refused(cluster, f"/{verb}", body)
    print(f"ok    {len(bodies)} bodies that are no JSON object, for {len(VERBS)} verbs: 400 and a sentence")


def changed(path, value):
    """POD with the value at the path."""
    pod = json.loads(json.dumps(POD))
    at = pod
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return pod


def wrong_kinds(cluster):
    for value in (None, [], "pod", 3):
        refused(cluster, "/filter", {"Pod": value, "NodeNames": ["a"]}, "Pod" if value is None else "")
    for names in (3, "a", {"a": 1}, [1], [["a"]], [None]):
        refused(cluster, "/filter", {"Pod": POD, "NodeNames": names}, "NodeNames")
    refused(cluster, "/filter", {"Pod": POD}, "neither 'NodeNames' nor 'Nodes'")
    refused(cluster, "/filter", {"Pod": POD, "Nodes": {"items": [{"metadata": {}}]}}, "Nodes")
    refused(cluster, "/filter", {"Pod": POD, "NodeNames": ["a"] * 100_001}, "100000")
    for path, value, words in ((("metadata",), 3, "metadata"), (("metadata", "uid"), 3, "uid"),
                               (("metadata", "labels"), ["x"], "labels"), (("spec",), [], "spec"),
                               (("spec", "containers"), {}, "containers"), (("spec", "containers", 0), "c", "containers"),
                               (("spec", "containers", 0, "resources"), 3, "resources"),
                               (("spec", "containers", 0, "resources", "limits"), [], "limits"),
                               (("spec", "containers"), [{"name": f"c{i}"} for i in range(257)], "257"),
                               (("spec", "priority"), "high", "priority")):
        for verb, rest in (("filter", {"NodeNames": ["a"]}), ("prioritize", {"NodeNames": ["a"]}),
                           ("preempt", {"NodeNameToMetaVictims": {}})):
            refused(cluster, f"/{verb}", {"Pod": changed(path, value), **rest}, words)
    for key in BIND:
        refused(cluster, "/bind", {**BIND, key: 3}, key)
        refused(cluster, "/bind", {other: value for other, value in BIND.items() if other != key}, key)
    for victims in (3, {"a": 3}, {"a": {"Pods": [3]}}, {"a": {"Pods": [{}]}}):
        refused(cluster, "/preempt", {"Pod": POD, "NodeNameToMetaVictims": victims})
    for review in ({}, {"request": 3}, {"request": {"uid": "u"}}, {"request": {"uid": 3, "kind": {"kind": "Pod"}}}):
        refused(cluster, "/webhook", review)
    # A quantity of the wrong form is a request that never fits: refused by reason, not by status.
    for limits in ({"aliyun.com/gpu-mem": True}, {"aliyun.com/gpu-mem": "ten"}, {"aliyun.com/gpu-mem": "-1"},
                   {"aliyun.com/gpu-mem": "9" * 40}, {"aliyun.com/gpu-mem": ["1"]}):
        status, text = post(cluster, "/filter", {"Pod": changed(("spec", "containers", 0, "resources", "limits"), limits), "NodeNames": ["a"]})
        assert status == 200 and "aliyun.com/gpu-mem" in json.loads(text)["FailedAndUnresolvableNodes"]["a"], text
    print("ok    fields of the wrong kind are named")


def unknown_fields(cluster):
    plain = post(cluster, "/filter", {"Pod": POD, "NodeNames": ["a"]})
    pod = json.loads(json.dumps(POD))
    for at in (pod, pod["metadata"], pod["spec"], pod["spec"]["containers"][0]):
        at["zzNewField"] = {"a": [1, {"b": None}]}
    assert post(cluster, "/filter", {"pOD": pod, "nodenames": ["a"], "FutureField": [[]]}) == plain
    assert json.loads(plain[1])["NodeNames"] == ["a"]
    print("ok    unknown fields change nothing, keys are read in any case")


def about_nothing(cluster):
    """Well-formed calls about what is not there."""
    for change, words in (({}, "not found"), ({"PodNamespace": "../../x", "PodName": "%2e%2e"}, "")):
        status, text = post(cluster, "/bind", {**BIND, **change})
        assert status == 200 and json.loads(text)["Error"] and words in text, text
    cluster.add_pod("x", 10, 30, schedulerName="nobody")
    uid = cluster.pod("x")["metadata"]["uid"]
    for change, words in (({}, "made anew"), ({"PodUID": uid, "Node": "nowhere"}, "nowhere"), ({"PodUID": uid, "Node": ""}, "node")):
        status, text = post(cluster, "/bind", {**BIND, **change})
        assert status == 200 and words in json.loads(text)["Error"], text
    assert cluster.node_of("x") is None
    cluster.delete_pod("x")
    assert json.loads(post(cluster, "/preempt", {"Pod": POD, "NodeNameToMetaVictims": {"nowhere": {"Pods": [{"UID": "q"}]}}})[1]) == {
        "NodeNameToMetaVictims": {}}
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=10)
    for method, path, status in (("GET", "/filter", 405), ("GET", "/nothing", 404), ("POST", "/nothing", 404), ("DELETE", "/bind", 405),
                                 ("GET", "/explain/default/nobody", 404), ("GET", "/explain/x", 400)):
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == status and json.loads(text)["error"], (method, path, answer.status, text)
    print("ok    binds of pods and nodes that are not there say so, and leave nothing behind")


def huge(cluster):
    with raw(cluster) as one:  # by its announcement
        one.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n")
        assert status_of(one) == 413
    with raw(cluster) as one:  # by what comes
        one.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent, block = 0, b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            while sent < 200:
                one.sendall(block)
                sent += 1
        except OSError:
            pass
        assert sent < 100, f"{sent} MiB were taken"
    with raw(cluster) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n")
        assert status_of(one) == 431
    refused(cluster, "/filter", b'{"Pod":"' + b"a" * (60 << 20) + b'"}')
    with raw(cluster) as one:
        one.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)))  # TLS at a plain port
        assert status_of(one) == 400
    print("ok    huge bodies and headers: 413 and 431")


def slow_cut_and_many(cluster):
    slow = [raw(cluster) for _ in range(40)]
    started = time.monotonic()
    for i, one in enumerate(slow):
        one.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\n" if i % 2 else b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    for _ in range(200):  # cut: in the header, in the body, after a request whose answer nobody reads
        for text in (b"POST /fil", b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"Pod\"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            one = raw(cluster)
            one.sendall(text)
            one.close()
    took = [still_right(cluster, f"beside-slow-{i}") for i in range(3)]
    answered = [status_of(one) for one in slow]
    waited = time.monotonic() - started
    assert set(answered) == {408} and waited < 20, (answered, waited)
    for one in slow:
        one.close()
    many = [raw(cluster) for _ in range(400)]  # more than are served
    time.sleep(0.3)
    took.append(still_right_elsewhere(cluster, many))
    print(f"ok    40 slow clients got their 408 after {waited:.0f} s, 600 were cut off, 400 idle ones: a pod meanwhile took at most {max(took):.2f} s")


def still_right_elsewhere(cluster, many):
    """kube-scheduler's kept connection goes on; the newest of too many connections were closed at once."""
    started = time.monotonic()
    cluster.add_pod("beside-many", 10, 30)
    cluster.wait_bound("beside-many", 5)
    took = time.monotonic() - started
    closed = 0
    for one in many:
        one.setblocking(False)
        try:
            closed += one.recv(1) == b""
        except OSError:
            pass
        one.close()
    assert closed >= 100, f"{closed} of 400 were refused"
    wait_until(lambda: cluster.extender("/healthz") == "ok", 10, "served again")
    cluster.delete_pod("beside-many")
    wait_until(lambda: all(card["free_units"] == 31 for node in cluster.state()["nodes"] for card in node["cards"]), 5, "nothing is held")
    return took


def metrics(cluster):
    cluster.add_pod("holds", 20, 50)
    cluster.wait_bound("holds")
    cluster.add_pod("waits", 20, 50)
    wait_until(lambda: cluster.events_of("waits"), 10, "refused")
    wait_until(lambda: 'sluice_scheduler_waiting_pods{rule="card-memory"} 1' in cluster.extender("/metrics"), 5,
               f"one waits: {[line for line in cluster.extender('/metrics').splitlines() if 'waiting' in line]}")
    bound = cluster.extender("/metrics")
    cluster.delete_pod("holds")
    cluster.wait_bound("waits")
    text = cluster.extender("/metrics")

    def value(name, text=text):
        found = re.findall(f"^{re.escape(name)} (\\S+)$", text, re.M)
        assert len(found) == 1, f"{name}: {found}"
        return float(found[0])
    for verb in VERBS:
        calls = value(f'sluice_scheduler_request_duration_seconds_count{{verb="{verb}"}}')
        assert value(f'sluice_scheduler_request_duration_seconds_bucket{{verb="{verb}",le="+Inf"}}') == calls
        assert value(f'sluice_scheduler_request_errors_total{{verb="{verb}"}}') <= calls
        assert value(f'sluice_scheduler_request_errors_total{{verb="{verb}"}}') > 0, "the bad bodies of this test"
        assert value(f'sluice_scheduler_request_duration_seconds_sum{{verb="{verb}"}}') > 0
    assert value("sluice_scheduler_binds_total") == value("sluice_scheduler_binds_total", bound) + 1
    for name in ("bind_conflicts_total", "bind_unknown_total", "wakes_total", "adopted_pods_total", "watch_errors_total", "lists_total",
                 "leading", "nodes", "pods", "assumed_pods", "untrusted_records", "placement_memory_bytes"):
        value(f"sluice_scheduler_{name}")
    assert "sluice_scheduler_waiting_pods{" not in text, "nobody waits"
    for watch in ("nodes", "pods", "poddisruptionbudgets"):
        assert 0 <= value(f'sluice_scheduler_watch_age_seconds{{watch="{watch}"}}') < 120
    if shutil.which("promtool"):
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        assert checked.returncode == 0 and not checked.stderr.strip(), checked.stderr
        print("ok    metrics: complete, true, and promtool finds nothing")
    else:
        print("ok    metrics: complete and true; left out: there is no promtool here to check their form")


def memory_mib(cluster):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{cluster.sluice.pid}/status").read()).group(1)) / 1024


def main():
    with SluiceCluster() as cluster:
        cluster.add_node("a")
        still_right(cluster, "before")
        pid = cluster.sluice.pid
        for part in (not_json, wrong_kinds, unknown_fields, about_nothing, huge, slow_cut_and_many):
            part(cluster)
            still_right(cluster, f"after-{part.__name__.replace('_', '-')}")
        metrics(cluster)
        assert cluster.sluice.poll() is None and cluster.sluice.pid == pid
        print(f"ok    the same process all the time, {memory_mib(cluster):.0f} MiB at the end")
        assert memory_mib(cluster) < 400


if __name__ == "__main__":
    main()
    sys.exit(0)
