#!/usr/bin/env python3
"""Kills a program and watches when its share is back. usage: release_times.py AGENT-SOCKET CARD-FILE PID

Asks the agent over its socket every few milliseconds (docs/agent-protocol.md) and the card by `sluice-sim show`. The share
of compute has to be back within 100 ms of the kill, whatever the card still holds; the share of memory within 100 ms of the
moment at which the card has freed it, and never before that. Prints the times after the kill. Exit status 1 when memory
was given away while the card still held it; 3 when something came back late, which on a busy machine is no verdict.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

ALLOWED_MS = 100
GIVE_UP_MS = 5000
TOO_EARLY, TOO_LATE = 1, 3


class Agent:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r")
        self.id = 0
        self.call("hello")

    def call(self, op):
        self.id += 1
        request = {"sluice": 1, "id": self.id, "op": op, "arguments": {}}
        self.socket.sendall((json.dumps(request) + "\n").encode())
        return json.loads(self.lines.readline())["result"]


class CardWatch(threading.Thread):
    """When the card was last known to hold memory of the process, and when it was first known not to."""

    def __init__(self, card, pid):
        super().__init__()
        self.card, self.pid = card, pid
        self.last_held = self.first_free = None

    def run(self):
        started = time.monotonic()
        while self.first_free is None and time.monotonic() - started < GIVE_UP_MS / 1000:
            asked = time.monotonic()
            shown = json.loads(subprocess.run(["sluice-sim", "show", self.card, "--json"], capture_output=True,
                                              check=True).stdout)
            if sum(p["resident_bytes"] for p in shown["processes"] if p["pid"] == self.pid):
                self.last_held = asked  # it still held it when the question was asked
            else:
                self.first_free = time.monotonic()  # it was free when the answer came


def main(path, card, pid):
    agent, watch = Agent(path), CardWatch(card, int(pid))
    before = agent.call("list")["cards"][0]
    if before["free_core_percent"] == 100 or before["free_units"] == before["units"]:
        sys.exit("the program to be killed has no share of compute or of memory")
    os.kill(int(pid), signal.SIGKILL)
    killed = time.monotonic()
    watch.start()
    compute_back = memory_back = None
    while memory_back is None and time.monotonic() - killed < GIVE_UP_MS / 1000:
        status = agent.call("list")["cards"][0]
        now = time.monotonic()
        if compute_back is None and status["free_core_percent"] == 100:
            compute_back = now
        if status["free_units"] == status["units"]:
            memory_back = now
        time.sleep(0.003)
    watch.join()
    if memory_back is None or compute_back is None or watch.first_free is None:
        print(f"not back after {GIVE_UP_MS} ms: compute {compute_back}, memory {memory_back}, card {watch.first_free}, {status}")
        return TOO_LATE
    compute_ms, memory_ms, freed_ms = ((t - killed) * 1000 for t in (compute_back, memory_back, watch.first_free))
    print(f"compute was back after {compute_ms:.0f} ms; the card freed the memory after {freed_ms:.0f} ms, its share was "
          f"back after {memory_ms:.0f} ms")
    if watch.last_held is not None and memory_back < watch.last_held:
        print(f"and the card still held it after {(watch.last_held - killed) * 1000:.0f} ms")
        return TOO_EARLY
    return TOO_LATE if compute_ms > ALLOWED_MS or memory_ms > freed_ms + ALLOWED_MS else 0


sys.exit(main(*sys.argv[1:]))
