#!/usr/bin/env python3
"""Takes a rule out of the library or the agent, one at a time, and asserts that a named row goes red: a bar that cannot
fail is none.

Mutations are guest::Mutation, governor::Mutation and the harness's AgentMutation, by name, and the measurement's scale;
the shipped library and agent have none of them switched on. Each case names the bar that must be missed.
"""
import concurrent.futures
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "script"))
import accuracy  # noqa: E402

SECONDS = 13
BEFORE_ANY_GATE = "before any gate"
# What is taken out, the row that must go red, what its miss must say.
CASES = [
    ("measurement 10 % too low", "lone-30-log-normal", "worst second"),
    ("measurement 10 % too low", "lone-5-5us", "worst 10 s"),
    ("measurement 10 % too high", "long-5-10ms", "delivered"),
    ("measurement 10 % too high", "lone-50-log-normal", "delivered"),
    ("marker cost", "lone-95-5us", "worst 10 s"),
    ("intervals", "lone-95-5us", "worst 10 s"),
    ("settler", "turns-4x25", "card busy"),
    ("bound", "long-5-10ms", "worst second"),
    ("no liveness", "peers-on-one-card", "hangs"),
    ("stuck", "peers-on-one-card", "worst second"),
    ("all liveness", "long-5-50ms", "worst 10 s"),
    ("clamp", "sync-step-70-gap-20ms", "delivered"),
    ("budget", "sync-pauses-50", "above the quota"),
    ("boundary", "copies-waits-host-functions", "delivered"),
    ("wary", "pauses-without-sync-30", "delivered"),
    ("union", "lone-30-8-processes", "delivered"),
    ("bases", "lone-30-2-processes", "worst 10 s"),
    ("limits", "share-changed", "worst second"),
    ("drain", "turns-30-50", "worst second"),
    ("overrun", "turns-30-stopped", "card idle"),
    ("held up", "turns-30-stopped", "settled"),
    ("dead, overrun", "turns-30-killed", "card idle"),
    ("presence", "turns-30-hung", "worst second"),
    ("take back", "burst-lends-and-takes-back", "longest wait"),
    ("arming", "turns-4x25", "card busy"),
    ("hysteresis", "turns-30-50", "longest wait"),
    ("overrun", "turns-30-hung", "longest time without the card"),
    ("priority", "priority-server-beside-trainer", "99th percentile"),
    ("priority", "priority-server-beside-trainer", "median latency"),
    ("take back", "priority-server-beside-trainer", "server: delivered"),
    ("measurement 10 % too high", "priority-server-beside-trainer", "trainer: mean"),
    ("measurement 10 % too high", "turns-50ms-beside-short", "mean"),
    ("measurement 10 % too high", "long-5-50ms", "worst 5 min"),
    ("bound", "two-cards-collective", "time against no library"),
    # The first row of all: what was measured of programs before any gate, against the card's log.
    ("measurement 10 % too low", "lone-30-log-normal", BEFORE_ANY_GATE),
    ("marker cost", "pauses-without-sync-30", BEFORE_ANY_GATE),
    ("wary", "pauses-without-sync-30", BEFORE_ANY_GATE),
    ("union", "lone-30-8-processes", BEFORE_ANY_GATE),
    ("intervals", "sync-launch-30", BEFORE_ANY_GATE),
    ("boundary", "copies-waits-host-functions", BEFORE_ANY_GATE),
]
# What the misses of each kind of bar say. Each has to be in a case.
BARS = {
    "worst_1s_points": "worst second", "first_1s_points": "worst second", "over_1s_points": "above the quota", "worst_10s_points": "worst 10 s",
    "mean_points": "mean", "last_mean_points": "trainer: mean", "long_unit": "worst 5 min", "delivered": "delivered",
    "first_delivered": "server: delivered", "settled": "settled", "slowdown": "time against no library", "card_busy": "card busy",
    "first_pause_ms": "longest time without the card", "first_wait_ms": "longest wait", "latency_p50_ms": "median latency",
    "latency_p99_ms": "99th percentile", "longest_idle_ms": "card idle"}


def spoil(scenario, what):
    if what.startswith("measurement"):
        return {**scenario, "measure_permille": 900 if what.endswith("low") else 1100}
    return {**scenario, "mutations": what.split(", ")}


def main():
    binary = str(pathlib.Path(os.environ["SLUICE_BUILD"]) / "bin/sluice-accuracy")
    scenarios = {s["name"]: s for s in json.loads((HERE / "scenarios.json").read_text())}
    known = json.loads((HERE / "missed.json").read_text())
    only = sys.argv[1:]
    cases = [case for case in CASES if not only or case[0] in only or case[1] in only]

    def run(scenario, bar):
        if bar != BEFORE_ANY_GATE:
            return accuracy.misses(scenario, accuracy.run(binary, scenario, 1, SECONDS))
        error = accuracy.run_ungated(binary, scenario)
        wrong = isinstance(error, str) or error > accuracy.SETTLED_BAR
        return [f"measured before any gate off by {error}, bar {accuracy.SETTLED_BAR}"] if wrong else []

    # A row is run once, with its gates and without.
    rows = sorted({(name, bar if bar == BEFORE_ANY_GATE else "") for _, name, bar in cases})
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sound = dict(zip(rows, pool.map(lambda row: run(scenarios[row[0]], row[1]), rows)))
        spoiled = list(pool.map(lambda case: run(spoil(scenarios[case[1]], case[0]), case[2]), cases))
    wrong = 0
    for kind in sorted({kind for one in scenarios.values() for kind in one["bars"]}):
        if not any(BARS[kind] in bar for _, _, bar in CASES):
            print(f"WRONG  no case for the bar {kind}")
            wrong += 1
    for (what, name, bar), misses in zip(cases, spoiled):
        without = sound[name, bar if bar == BEFORE_ANY_GATE else ""]
        good = any(bar in miss for miss in misses) and not any(bar in miss for miss in without)
        wrong += 0 if good else 1
        note = f" (and without it: {'; '.join(without)}{', known' if name in known else ''})" if without else ""
        print(f"{'ok' if good else 'WRONG':<6} {what:<26} {name:<32} {'; '.join(misses) or 'not noticed'}{note}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
