#!/usr/bin/env python3
"""What `sluice ps`, the metrics port, nvidia-smi inside the run and the card's own log say of one program's compute, second
by second. usage: utilisation.py CARD-FILE GRANT METRICS-PORT NVIDIA-SMI-OUTPUT SECONDS

Each of the three is held against the log over the same second (the agent's figure is over the last second): within 1
point over all seconds together, and against each other within 1 point in each (nvidia-smi's are whole numbers). Exit
status 3 when one is not.
"""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

STEP_MS = 100


def answer(*command):
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def card_now_ms(card):
    return answer("sluice-sim", "show", card, "--json")["now_ns"] // 1_000_000


def main(card, grant, port, view, seconds):
    rows = []
    for _ in range(int(seconds)):
        time.sleep(1)
        ps = next(g for g in answer("sluice", "ps", "--json")["grants"] if g["name"] == grant)
        now = card_now_ms(card)
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        metric = re.search(r'^sluice_grant_utilisation_percent\{[^}]*"' + grant + r'"[^}]*\} (\S+)$', text, re.M)
        inside = pathlib.Path(view).read_text().split("\n")[-2]
        rows.append((now, ps["use"][0]["utilisation_percent"], float(metric.group(1)), float(inside)))
    log = answer("sluice-sim", "log", card, "--json", "--window", str(STEP_MS), "--from", str(rows[0][0] - 1000), "--to",
                 str(rows[-1][0]))
    steps = [sum(p["occupied_percent"] for p in window["processes"] if p["pid"] == 0) for window in log["windows"]]
    truths = []
    for row in rows:
        end = (row[0] - rows[0][0] + 1000) // STEP_MS
        part = steps[max(end - 10, 0):end]
        truths.append(sum(part) / len(part))
    print("second: log, sluice ps, metrics, nvidia-smi")
    for i, (row, truth) in enumerate(zip(rows, truths)):
        print(f"{i}: {truth:.2f}, {row[1]:.2f}, {row[2]:.2f}, {row[3]:g}")
    wrong = []
    for column, name in ((1, "sluice ps"), (2, "the metrics"), (3, "nvidia-smi")):
        off = sum(row[column] for row in rows) / len(rows) - sum(truths) / len(truths)
        print(f"{name}: off by {off:+.2f} on average, at most {max(abs(r[column] - t) for r, t in zip(rows, truths)):.2f}")
        if abs(off) > 1:
            wrong.append(f"{name} is {off:+.2f} points off the log")
    apart = max(max(row[1:]) - min(row[1:]) for row in rows)
    if apart > 1.5:  # a point, and what nvidia-smi rounds by
        wrong.append(f"the three are up to {apart:.2f} points apart in one second")
    print("; ".join(wrong))
    return 3 if wrong else 0


sys.exit(main(*sys.argv[1:]))
