#!/usr/bin/env python3
"""Random operations with faults, checked against a model: whatever happens, no card is ever over its capacity.

    faults_test.py [SECONDS] [SEED]      60 s by default; 3600 is the long form

Pods of many shapes come and go while sluice-scheduler is killed and started again, the API server is killed and started
again, and (second half) two replicas share the work and the leader is killed. After each phase everything is quiet: then
the scheduler's own view must equal what the pods' records say, and no pod that fits may be left waiting.
"""

import json
import random
import sys
import threading
import time
import urllib.error

from sluice_cluster import GPU_COUNT, SluiceCluster, free_port, wait_until

NODES = {"a": 2, "b": 1, "c": 4}
UNITS = 31


def held(cluster):
    """(node, card) -> [units, percent] by the records of live pods; the checker's own reading of the API."""
    out = {}
    for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]:
        record = pod["metadata"].get("annotations", {}).get("sluice.dev/allocation")
        node = pod["spec"].get("nodeName")
        if not record or not node or pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        for card in json.loads(record)["cards"]:
            total = out.setdefault((node, card["index"]), [0, 0])
            total[0] += card["units"]
            total[1] += card["core_milli"]
    return out


class Checker(threading.Thread):
    """Looks at the API server ten times a second, by itself."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster, self.stopping, self.looks, self.faults = cluster, threading.Event(), 0, []

    def run(self):
        while not self.stopping.wait(0.1):
            try:
                for card, (units, milli) in held(self.cluster).items():
                    if units > UNITS or milli > 1000:
                        self.faults.append(f"card {card} holds {units} units and {milli / 10} %")
                self.looks += 1
            except (OSError, ValueError):
                pass  # the API server is down: nothing to see


class Churn:
    def __init__(self, cluster, seed):
        self.cluster, self.random, self.count, self.live = cluster, random.Random(seed), 0, []

    def step(self):
        choice = self.random.random()
        try:
            if choice < 0.55 or not self.live:
                self.add()
            else:
                name = self.live.pop(self.random.randrange(len(self.live)))
                self.cluster.delete_pod(name) if choice < 0.8 else self.cluster.finish_pod(name)
        except (OSError, ValueError):
            pass  # refused or unreachable: the model reads the API, not our intentions

    def add(self):
        self.count += 1
        name = f"p{self.count}"
        cards = self.random.choice([1, 1, 1, 1, 2])
        labels = {GPU_COUNT: str(cards)} if cards > 1 else None
        self.cluster.add_pod(name, self.random.choice([2, 5, 10, 20]) * cards, self.random.choice([5, 10, 30, 50]) * cards,
                             labels=labels)
        self.live.append(name)


def check_quiet(cluster, url=None):
    """The scheduler's view equals the records, and whoever fits is bound."""
    def agrees():
        expected = held(cluster)
        for node in cluster.state()["nodes"]:
            for card in node["cards"]:
                units, milli = expected.get((node["name"], card["index"]), [0, 0])
                if card["free_units"] != UNITS - units or card["free_core_percent"] != 100 - milli // 10:
                    return False
        return True
    wait_until(agrees, 30, "no phantom reservation after quiet")

    def all_served():
        for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]:
            if not pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                said = json.loads(cluster.extender(f"/explain/default/{pod['metadata']['name']}"))
                if any(node["fits"] for node in said.get("nodes", [])):
                    return False
        return True
    wait_until(all_served, 45, "no pod that fits is left waiting")


def api_ready(cluster):
    try:
        return bool(cluster.api.get("/api/v1/nodes"))
    except (OSError, ValueError):
        return False


def phase(cluster, churn, seconds, faults):
    """Churns for a while; every few seconds one of the faults strikes."""
    end = time.monotonic() + seconds
    next_fault = time.monotonic() + 3
    struck = 0
    while time.monotonic() < end:
        churn.step()
        time.sleep(churn.random.uniform(0.0, 0.1))
        if faults and time.monotonic() > next_fault:
            churn.random.choice(faults)()
            struck += 1
            next_fault = time.monotonic() + churn.random.uniform(2, 5)
    return struck


def kill_scheduler(cluster):
    cluster.stop_sluice(kill=True)
    cluster.start_sluice()


def kill_api_server(cluster):
    cluster.control.kill("kube-apiserver")
    time.sleep(0.5)
    cluster.control.restart("kube-apiserver")
    wait_until(lambda: api_ready(cluster), 60, "API server back")


class Replicas:
    """Two replicas behind the one address that kube-scheduler knows; whoever holds that address may be a follower."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.ports = [cluster.port, free_port()]
        self.processes = [None, None]
        cluster.stop_sluice()
        for i in range(2):
            self.start(i)

    def start(self, i):
        port = self.ports[i]
        self.processes[i] = self.cluster.start_replica(
            port, ["--leader-elect", "--advertise-url", f"http://127.0.0.1:{port}", "--lease-namespace", "default"])

    def kill_leader(self):
        try:
            holder = self.cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/default/leases/sluice-scheduler")["spec"]["holderIdentity"]
        except (OSError, KeyError):
            return
        for i in range(2):
            if holder.endswith(f":{self.ports[i]}"):
                self.processes[i].kill()
                self.processes[i].wait()
                self.start(i)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.wait(timeout=20)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with SluiceCluster() as cluster:
        for name, cards in NODES.items():
            cluster.add_node(name, cards)
        checker, churn = Checker(cluster), Churn(cluster, seed)
        checker.start()
        try:
            struck = phase(cluster, churn, seconds / 2, [lambda: kill_scheduler(cluster), lambda: kill_api_server(cluster)])
            check_quiet(cluster)
            print(f"one replica: {struck} faults, {churn.count} pods, {checker.looks} looks", flush=True)
            replicas = Replicas(cluster)
            try:
                wait_until(lambda: cluster.extender("/readyz") == "ok", 30, "replica ready")
                struck = phase(cluster, churn, seconds / 2, [replicas.kill_leader])
                check_quiet(cluster)
                print(f"two replicas: {struck} leaders killed, {churn.count} pods, {checker.looks} looks", flush=True)
            finally:
                replicas.stop()
        finally:
            checker.stopping.set()
            checker.join()
        for fault in checker.faults[:5]:
            print("OVER CAPACITY:", fault)
        bound = sum(1 for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"] if pod["spec"].get("nodeName"))
        print(f"seed {seed}: {churn.count} pods made, {bound} bound at the end, {len(checker.faults)} cards over capacity")
        sys.exit(1 if checker.faults or checker.looks < seconds else 0)


if __name__ == "__main__":
    main()
