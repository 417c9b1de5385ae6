#!/usr/bin/env python3
"""Kills a program and watches when its share is back. usage: release_times.py AGENT-SOCKET CARD-FILE PID

Asks the agent over its socket every few milliseconds (docs/agent-protocol.md) and the card by `sluice-sim show`. Prints
both times after the kill; exits 1 when the share came back before the card had freed the memory, or later than 100 ms
after it.
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


def memory_on_card(card, pid):
    shown = json.loads(subprocess.run(["sluice-sim", "show", card, "--json"], capture_output=True, check=True).stdout)
    return sum(p["resident_bytes"] for p in shown["processes"] if p["pid"] == pid)


def main(path, card, pid):
    agent, pid, freed = Agent(path), int(pid), []
    units = agent.call("list")["cards"][0]["units"]
    started = time.monotonic()

    def watch_card():
        # The time before the question: the card had freed it by then at the latest when the answer says so.
        while not freed and time.monotonic() - started < GIVE_UP_MS / 1000:
            held = memory_on_card(card, pid)
            if held == 0:
                freed.append(time.monotonic())

    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    watcher = threading.Thread(target=watch_card)
    watcher.start()
    back = None
    while back is None and time.monotonic() - started < GIVE_UP_MS / 1000:
        status = agent.call("list")["cards"][0]
        if status["free_units"] == units and status["free_core_percent"] == 100:
            back = time.monotonic()
        time.sleep(0.003)
    watcher.join()
    if back is None or not freed:
        sys.exit(f"not back after {GIVE_UP_MS} ms")
    back_ms, freed_ms = (back - started) * 1000, (freed[0] - started) * 1000
    print(f"card freed the memory after {freed_ms:.0f} ms, the share was back after {back_ms:.0f} ms")
    return 1 if back_ms > freed_ms + ALLOWED_MS else 0


sys.exit(main(*sys.argv[1:]))
