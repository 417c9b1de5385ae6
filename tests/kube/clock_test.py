#!/usr/bin/env python3
"""Wrong clocks decide nothing: two replicas, one three hours ahead and one three hours behind, both jumping about by hours
while they share the work, and the leader is killed now and then.

    clock_test.py [SECONDS]      40 by default

The wall clock is turned by libfaketime in the schedulers alone. Checked: never two leaders; no lease is taken from a leader
that lives; waiting pods are woken; no card over capacity, no phantom, no pod left waiting. That the clocks are
wrong indeed is read off the assume times and the Lease that the replicas wrote.
"""

import datetime
import json
import random
import sys
import threading
import time
import urllib.request
from pathlib import Path

from faults_test import NODES, Checker, Churn, Replicas, check_quiet, phase
from sluice_cluster import SluiceCluster, wait_until

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
HOURS = (3, -3)


class Skewed(Replicas):
    def __init__(self, cluster):
        self.clocks = [cluster.directory / f"clock-{i}" for i in range(2)]
        for i in range(2):
            self.turn(i, HOURS[i])
        super().__init__(cluster)

    def turn(self, i, hours):
        fresh = self.clocks[i].with_suffix(".new")
        fresh.write_text(f"{hours * 3600:+d}s\n")
        fresh.rename(self.clocks[i])

    def start(self, i):
        port = self.ports[i]
        self.processes[i] = self.cluster.start_replica(
            port, ["--leader-elect", "--advertise-url", f"http://127.0.0.1:{port}", "--lease-namespace", "default"],
            {"LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(self.clocks[i]), "FAKETIME_CACHE_DURATION": "1",
             "FAKETIME_DONT_FAKE_MONOTONIC": "1"})

    def leading(self):
        """Ports that say they lead."""
        out = []
        for port in self.ports:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    if "\nsluice_scheduler_leading 1\n" in answer.read().decode():
                        out.append(port)
            except OSError:
                pass
        return out


class LeaderWatch(threading.Thread):
    def __init__(self, replicas):
        super().__init__()
        self.replicas, self.stopping, self.looks, self.two, self.seen = replicas, threading.Event(), 0, 0, set()

    def run(self):
        while not self.stopping.wait(0.2):
            leading = self.replicas.leading()
            self.looks += 1
            self.two += len(leading) > 1
            self.seen.update(leading)


def lease(cluster):
    return cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/default/leases/sluice-scheduler")["spec"]


def hours_off(text):
    written = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (written - datetime.datetime.now(datetime.timezone.utc)).total_seconds() / 3600


def clocks_are_wrong(cluster):
    cluster.add_pod("when", 2, 5)
    cluster.wait_bound("when", 20)
    off = int(cluster.pod("when")["metadata"]["annotations"]["scheduler.framework.gpushare.assume-time"]) / 1e9 - time.time()
    assert abs(off) > 3600, f"the assume time is {off:.0f} s off: the clock was not turned"
    assert abs(hours_off(lease(cluster)["renewTime"])) > 1, lease(cluster)
    cluster.delete_pod("when")
    print(f"ok    assume time {off / 3600:+.1f} h off, lease renewed {hours_off(lease(cluster)['renewTime']):+.1f} h off")


def lease_is_kept(cluster, replicas, seconds=20):
    """Longer than the lease lasts: the follower's clock says that it ran out hours ago."""
    before = lease(cluster)
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end:
        for i in range(2):
            replicas.turn(i, random.Random(turn).choice((-30, -3, 0, 3, 30)))
            turn += 1
        time.sleep(1)
    after = lease(cluster)
    assert (after["holderIdentity"], after["leaseTransitions"]) == (before["holderIdentity"], before["leaseTransitions"]), (before, after)
    print(f"ok    {seconds} s of jumping clocks: the leader kept its lease")


def woken(cluster):
    """Waking, its back-off and events run on the monotonic clock."""
    for i in range(4):
        cluster.add_pod(f"fills-{i}", 31, 50, nodeSelector={"kubernetes.io/hostname": "c"})
        cluster.wait_bound(f"fills-{i}")
    cluster.add_pod("waits", 20, 20, nodeSelector={"kubernetes.io/hostname": "c"})
    wait_until(lambda: cluster.events_of("waits"), 15, "refused")
    time.sleep(1.5)
    started = time.monotonic()
    cluster.delete_pod("fills-2")
    cluster.wait_bound("waits", 5)
    print(f"ok    a waiting pod was bound {time.monotonic() - started:.2f} s after its card became free")
    for name in ["waits", *(f"fills-{i}" for i in (0, 1, 3))]:
        cluster.delete_pod(name)


def main():
    if not LIBRARY.exists():
        print("skipped: turning clocks needs libfaketime (Debian: apt install libfaketime)")
        sys.exit(77)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 40
    with SluiceCluster() as cluster:
        for name, cards in NODES.items():
            cluster.add_node(name, cards)
        # A clock that is behind takes every certificate for one of the future; the API server's is not checked here.
        cluster.through(cluster.control.state()["server"], "unchecked", insecure=True)
        replicas = Skewed(cluster)
        watch, checker, churn = LeaderWatch(replicas), Checker(cluster), Churn(cluster, 7)
        try:
            wait_until(replicas.leading, 30, "one leads")
            wait_until(lambda: cluster.extender("/readyz") == "ok", 30, "replica ready")
            watch.start()
            checker.start()
            clocks_are_wrong(cluster)
            lease_is_kept(cluster, replicas)
            woken(cluster)
            jump = lambda: [replicas.turn(i, churn.random.choice((-30, -3, 0, 3, 30))) for i in range(2)]
            struck = phase(cluster, churn, seconds, [jump, jump, replicas.kill_leader])
            check_quiet(cluster)
            print(f"ok    {struck} jumps and leaders killed, {churn.count} pods, {checker.looks} looks")
        finally:
            for thread in (watch, checker):
                thread.stopping.set()
                if thread.is_alive():
                    thread.join()
            replicas.stop()
        assert not checker.faults, checker.faults[:5]
        assert watch.two == 0, f"two leaders in {watch.two} of {watch.looks} looks"
        print(f"ok    never two leaders in {watch.looks} looks; {len(watch.seen)} replicas have led")


if __name__ == "__main__":
    main()
    sys.exit(0)
