#!/usr/bin/env python3
"""Random operations with faults, checked against a model: whatever happens, no card is ever over its capacity.

    faults_test.py [SECONDS] [SEED]      60 s by default; 3600 is the long form

Pods of many shapes come and go, some bound by name past every scheduler, while sluice-scheduler is killed and started again,
the API server is killed and started again, connections between the two are cut, fall silent, or lose every answer, and (every
second phase) two replicas share the work and the leader is killed. After each phase everything is quiet: then the
scheduler's own view must equal what the pods' records say, no pod that fits may be left waiting, and no pod may be bound by
us without a record.
"""

import collections
import itertools
import json
import random
import sys
import threading
import time

from proxy import Proxy
from sluice_cluster import GPU_COUNT, GPU_CORE, GPU_MEM, SluiceCluster, free_port, wait_until

NODES = {"a": 2, "b": 1, "c": 4}
UNITS = 31


PHASE_S = 120
MOST_LIVE = 50


def live_pods(cluster):
    return [pod for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed")]


def record_of(pod):
    record = pod["metadata"].get("annotations", {}).get("sluice.dev/allocation")
    return json.loads(record) if record else None


def held(cluster, pods=None):
    """(node, card) -> [units, percent] by the records of live pods; the checker's own reading of the API."""
    out = {}
    for pod in live_pods(cluster) if pods is None else pods:
        for card in (record_of(pod) or {"cards": []})["cards"]:
            total = out.setdefault((pod["spec"]["nodeName"], card["index"]), [0, 0])
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
                pods = live_pods(self.cluster)
                for pod in pods:
                    if record_of(pod) is None and "by-name" not in pod["metadata"]["name"]:
                        self.faults.append(f"{pod['metadata']['name']} is bound without a record")
                for card, (units, milli) in held(self.cluster, pods).items():
                    if units > UNITS or milli > 1000:
                        self.faults.append(f"card {card} holds {units} units and {milli / 10} %")
                self.looks += 1
            except (OSError, ValueError):
                pass  # the API server is down: nothing to see


class Churn:
    def __init__(self, cluster, seed):
        self.cluster, self.random, self.count, self.live = cluster, random.Random(seed), 0, []
        self.finished = collections.deque()

    def step(self):
        choice = self.random.random()
        try:
            if (choice < 0.55 and len(self.live) < MOST_LIVE) or not self.live:
                self.add()
            else:
                name = self.live.pop(self.random.randrange(len(self.live)))
                if choice < 0.8:
                    self.cluster.delete_pod(name)
                else:
                    self.cluster.finish_pod(name)
                    self.finished.append(name)
            if len(self.finished) > 20:
                self.cluster.delete_pod(self.finished.popleft())
        except (OSError, ValueError):
            pass  # refused or unreachable: the model reads the API, not our intentions

    def add(self):
        self.count += 1
        cards = self.random.choice([1, 1, 1, 1, 2])
        by_name = self.random.random() < 0.1
        name = f"p{self.count}-by-name" if by_name else f"p{self.count}"
        self.live.append(name)  # also where the answer is lost
        self.cluster.add_pod(name, self.random.choice([2, 5, 10, 20]) * cards, self.random.choice([5, 10, 30, 50]) * cards,
                             labels={GPU_COUNT: str(cards)} if cards > 1 else None,
                             nodeName=self.random.choice(list(NODES)) if by_name else None)


def asked(pod):
    """Units, percent and cards of a pod of this test."""
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return int(limits[GPU_MEM]), int(limits[GPU_CORE]), int(pod["metadata"].get("labels", {}).get(GPU_COUNT, 1))


def fitting_node(pod, pods, state):
    """A node with room for the pod, both by its sums, as kube-scheduler's own filter has them, and by free cards. Sums count
    by themselves: pods bound by name may ask for more cards, or more of them all together, than a node has."""
    units, percent, cards = asked(pod)
    for node in state["nodes"]:
        there = [asked(other) for other in pods if other["spec"]["nodeName"] == node["name"]]
        if sum(one[0] for one in there) + units > UNITS * NODES[node["name"]]:
            continue
        if sum(one[1] for one in there) + percent > 100 * NODES[node["name"]]:
            continue
        if sum(card["free_units"] * cards >= units and card["free_core_percent"] * cards >= percent for card in node["cards"]) >= cards:
            return node["name"]
    return None


def worst_case(pods):
    """node -> [units, percent] that pods without a record may have of any card there."""
    out = {}
    for pod in pods:
        if record_of(pod) is None:
            units, percent, cards = asked(pod)
            total = out.setdefault(pod["spec"]["nodeName"], [0, 0])
            total[0] += units // cards
            total[1] += percent * 10 // cards
    return out


def check_quiet(cluster):
    """The scheduler's view equals the records, and whoever fits is bound."""
    difference = []
    wait_until(lambda: cluster.extender("/readyz") == "ok", 30, "ready after the last fault")

    def agrees():
        pods = live_pods(cluster)
        expected, anywhere = held(cluster, pods), worst_case(pods)
        difference.clear()
        for node in cluster.state()["nodes"]:
            for card in node["cards"]:
                units, milli = expected.get((node["name"], card["index"]), [0, 0])
                more_units, more_milli = anywhere.get(node["name"], [0, 0])
                wanted = (max(0, UNITS - units - more_units), max(0, 1000 - milli - more_milli) // 10)
                if (card["free_units"], card["free_core_percent"]) != wanted:
                    difference.append(f"{node['name']}/{card['index']}: {card['free_units']} units and {card['free_core_percent']} % "
                                      f"free, by the records {wanted}")
        return not difference
    try:
        wait_until(agrees, 30, "no phantom reservation after quiet")
    except AssertionError as error:
        raise AssertionError(f"{error}; {difference}") from None

    # kube-scheduler has clients of its own: after an API server that was away their watches come back within a minute.
    waiting = []

    def all_served():
        waiting.clear()
        pods = live_pods(cluster)
        state = cluster.state()
        for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]:
            if pod["spec"].get("nodeName") or pod["status"].get("phase") != "Pending":
                continue
            text = cluster.extender(f"/explain/default/{pod['metadata']['name']}")
            assert text, f"no answer to /explain: {cluster.last_error}"
            said = [node["node"] for node in json.loads(text).get("nodes", []) if node["fits"]]
            node = fitting_node(pod, pods, state)
            if node is not None or said:
                waiting.append((pod["metadata"]["name"], f"fits {node}", f"explained as fitting {said}",
                                pod["metadata"].get("annotations"), pod["status"].get("conditions")))
        return not waiting
    try:
        wait_until(all_served, 100, "no pod that fits is left waiting")
    except AssertionError as error:
        print(cluster.control.scheduler_dump(), file=sys.stderr)
        raise AssertionError(f"{error}: {waiting[:3]}") from None


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
        self.names = itertools.cycle(["127.0.0.1", "localhost"])
        cluster.stop_sluice()
        for i in range(2):
            self.start(i)

    def start(self, i):
        port = self.ports[i]
        self.processes[i] = self.cluster.start_replica(
            port, ["--leader-elect", "--advertise-url", f"http://{next(self.names)}:{port}", "--lease-namespace", "default"])

    # Under the same name it has its lease back at once; under another one it is a stranger at the leader's address, and
    # somebody takes over when the lease has run out.
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


def one_replica(cluster, churn, proxy, seconds):
    return phase(cluster, churn, seconds, [
        lambda: kill_scheduler(cluster), lambda: kill_api_server(cluster), proxy.cut,
        lambda: proxy.silence(churn.random.uniform(0.5, 4)), lambda: proxy.lose_answers(churn.random.uniform(0.1, 2))])


def two_replicas(cluster, churn, proxy, seconds):
    replicas = Replicas(cluster)
    try:
        wait_until(lambda: cluster.extender("/readyz") == "ok", 30, "replica ready")
        struck = phase(cluster, churn, seconds, [
            replicas.kill_leader, replicas.kill_leader, proxy.cut, lambda: proxy.lose_answers(churn.random.uniform(0.1, 2))])
        check_quiet(cluster)
        return struck
    finally:
        replicas.stop()


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    phases = max(1, round(seconds / 2 / PHASE_S)) * 2
    with SluiceCluster() as cluster:
        for name, cards in NODES.items():
            cluster.add_node(name, cards)
        proxy = Proxy(cluster.control.state()["server"])
        cluster.stop_sluice()
        cluster.through(proxy.url, "proxy")
        cluster.start_sluice()
        checker, churn = Checker(cluster), Churn(cluster, seed)
        checker.start()
        try:
            for number in range(phases):
                if number % 2 == 0:
                    if cluster.sluice is None:
                        cluster.start_sluice()
                    struck = one_replica(cluster, churn, proxy, seconds / phases)
                    check_quiet(cluster)
                else:
                    struck = two_replicas(cluster, churn, proxy, seconds / phases)
                print(f"{'two replicas' if number % 2 else 'one replica'}: {struck} faults, {churn.count} pods, "
                      f"{checker.looks} looks", flush=True)
                if checker.faults:
                    break
        finally:
            checker.stopping.set()
            checker.join()
            proxy.stop()
        for fault in checker.faults[:5]:
            print("BROKEN:", fault)
        print(f"seed {seed}: {churn.count} pods made, {len(live_pods(cluster))} bound at the end, {len(checker.faults)} times broken")
        sys.exit(1 if checker.faults or checker.looks < seconds else 0)


if __name__ == "__main__":
    main()
