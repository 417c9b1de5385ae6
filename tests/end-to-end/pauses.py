#!/usr/bin/env python3
"""Two programs of which one pauses, by the card's own log (occupied time): what each had while the first worked and while
it paused.

  pauses.py CARD-FILE PID PERCENT PID PERCENT FROM-MS TO-MS

The first pauses where nothing of it is on the card for --pause-ms. 200 ms on either side of a pause's beginning and end
belong to neither; of those after its end the first's share is shown by itself. Exits 1 with the figures when the first has
less than its percentage while it works, by more than --points over all or --back points right after a pause; when the
second then has less than its own; or when the second has not --lent points more than its own in the pauses.
"""

import argparse
import json
import subprocess
import sys

STEP_MS = 50


def windows(card, begin, end):
    text = subprocess.run(["sluice-sim", "log", card, "--json", "--window", str(STEP_MS), "--from", str(begin), "--to", str(end)],
                          capture_output=True, text=True, check=True).stdout
    return json.loads(text)["windows"]


def of(pid, log):
    return [sum(p["occupied_percent"] for p in window["processes"] if p["pid"] == pid) for window in log]


def stretches(values, is_in, least):
    """(begin, end) of every run of at least so many windows of which is_in holds."""
    found, begin = [], None
    for i, value in enumerate([*values, None]):
        inside = value is not None and is_in(value)
        if inside and begin is None:
            begin = i
        if not inside and begin is not None:
            if i - begin >= least:
                found.append((begin, i))
            begin = None
    return found


def mean(values):
    return sum(values) / len(values) if values else 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("card")
    parser.add_argument("first", type=int)
    parser.add_argument("first_percent", type=float)
    parser.add_argument("second", type=int)
    parser.add_argument("second_percent", type=float)
    parser.add_argument("from_ms", type=int)
    parser.add_argument("to_ms", type=int)
    parser.add_argument("--pause-ms", type=int, default=1000)
    parser.add_argument("--points", type=float, default=3.0)
    parser.add_argument("--back", type=float, default=10.0)
    parser.add_argument("--lent", type=float, default=20.0)
    options = parser.parse_args()
    log = windows(options.card, options.from_ms, options.to_ms)
    first, second = of(options.first, log), of(options.second, log)
    pauses = stretches(first, lambda share: share == 0, options.pause_ms // STEP_MS)
    if len(pauses) < 2:
        sys.exit(f"the first paused {len(pauses)} times, expected two pauses at least")
    edge = 200 // STEP_MS
    paused = [i for begin, end in pauses for i in range(begin + edge, end - edge)]
    working = [i for (_, begin), (end, _) in zip(pauses, pauses[1:]) for i in range(begin + edge, end - edge)]
    returns = [mean(first[begin:begin + edge]) for _, begin in pauses if begin + edge <= len(first)]
    lent, own, beside = mean([second[i] for i in paused]), mean([first[i] for i in working]), mean([second[i] for i in working])
    print(f"{len(pauses)} pauses: in them the second had {lent:.2f} %; between them the first had {own:.2f} %, the second "
          f"{beside:.2f} %; right after a pause the first had {mean(returns):.2f} % ({min(returns, default=0):.2f} to "
          f"{max(returns, default=0):.2f})")
    wrong = mean(returns) < options.first_percent - options.back or own < options.first_percent - options.points or beside < options.second_percent - options.points
    return 1 if wrong or lent < options.second_percent + options.lent else 0


sys.exit(main())
