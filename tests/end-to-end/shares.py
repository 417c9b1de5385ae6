#!/usr/bin/env python3
"""What share of the card a program had, by the card's own log (occupied time), held against what it should have had.

  shares.py CARD-FILE PID|card WANTED-PERCENT FROM-MS TO-MS [--five P] [--whole P]

Exits 1 with the figures when a window of 5 s (moved by 100 ms) is further off than --five points (3) or the whole stretch
further than --whole points (1).
"""

import argparse
import json
import subprocess
import sys

STEP_MS = 100
FIVE_SECONDS = 5000 // STEP_MS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("card")
    parser.add_argument("who")
    parser.add_argument("wanted", type=float)
    parser.add_argument("from_ms", type=int)
    parser.add_argument("to_ms", type=int)
    parser.add_argument("--five", type=float, default=3.0)
    parser.add_argument("--whole", type=float, default=1.0)
    options = parser.parse_args()
    log = json.loads(subprocess.run(
        ["sluice-sim", "log", options.card, "--json", "--window", str(STEP_MS), "--from", str(options.from_ms),
         "--to", str(options.to_ms)], capture_output=True, text=True, check=True).stdout)
    pid = 0 if options.who == "card" else int(options.who)
    steps = [sum(p["occupied_percent"] for p in window["processes"] if p["pid"] == pid) for window in log["windows"]]
    if len(steps) < 10:
        sys.exit(f"the log has only {len(steps)} windows")
    whole = sum(steps) / len(steps)
    width = min(FIVE_SECONDS, len(steps))
    fives = [sum(steps[i:i + width]) / width for i in range(len(steps) - width + 1)]
    text = f"{options.who}: {whole:.2f} % over {len(steps) * STEP_MS} ms, windows of 5 s {min(fives):.2f} to {max(fives):.2f}"
    print(f"{text}, wanted {options.wanted:g}")
    off_five = max(abs(value - options.wanted) for value in fives)
    return 1 if off_five > options.five or abs(whole - options.wanted) > options.whole else 0


sys.exit(main())
