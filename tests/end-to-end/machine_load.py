#!/usr/bin/env python3
"""What others use of this machine's processors while a test measures: by the kernel's own counts, less what the test's
processes use. What a hypervisor takes away counts, and so does low priority: it gives way, but not at once.

  machine_load.py show ROOT-PID WORK                prints "SECONDS OTHERS": a moment
  machine_load.py since ROOT-PID WORK SECONDS OTHERS   percent of one processor that others used since that moment
  machine_load.py wait ROOT-PID WORK SECONDS        until a processor is to spare for two seconds, at most so long

The test's processes are those below ROOT-PID and those that have its scratch folder WORK in their command line.
"""

import os
import pathlib
import sys
import time

TICK = os.sysconf("SC_CLK_TCK")


def machine_seconds():
    # man proc_stat: user nice system idle iowait irq softirq steal guest guest_nice
    user, nice, system, _, _, irq, softirq, steal = [int(n) for n in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (user + nice + system + irq + softirq + steal) / TICK


def own_seconds(root, work):
    children, used, ours = {}, {}, {root}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            command = pathlib.Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        # With those that have ended and been waited for.
        used[pid] = sum(int(n) for n in fields[11:15])
        if work.encode() in command:
            ours.add(pid)
    found, todo = set(), list(ours)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return sum(used.get(pid, 0) for pid in found) / TICK


def moment(root, work):
    return time.monotonic(), machine_seconds() - own_seconds(root, work)


def percent(before, after):
    return max(0, round(100 * (after[1] - before[1]) / max(after[0] - before[0], 0.01)))


def wait(root, work, seconds):
    end, quiet = time.monotonic() + seconds, 0
    room = 100 * max(os.cpu_count() - 1, 1) - 30
    before = moment(root, work)
    while quiet < 2 and time.monotonic() < end:
        time.sleep(1)
        after = moment(root, work)
        others = percent(before, after)
        quiet = quiet + 1 if others <= room else 0
        before = after
    if quiet < 2:
        print(f"others use {others} % of a processor and have for {seconds} s; measured all the same")


def main(what, root, work, *rest):
    if what == "show":
        print(*moment(int(root), work))
    elif what == "since":
        print(percent((float(rest[0]), float(rest[1])), moment(int(root), work)))
    else:
        wait(int(root), work, float(rest[0]))


main(*sys.argv[1:])
