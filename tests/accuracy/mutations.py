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
    ("priority", "priority-server-beside-trainer", "99th percentile"),
]


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

    def run(scenario):
        return accuracy.misses(scenario, accuracy.run(binary, scenario, 1, SECONDS))

    names = sorted({name for _, name, _ in cases})
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sound = dict(zip(names, pool.map(lambda name: run(scenarios[name]), names)))
        spoiled = list(pool.map(lambda case: run(spoil(scenarios[case[1]], case[0])), cases))
    wrong = 0
    for (what, name, bar), misses in zip(cases, spoiled):
        good = any(bar in miss for miss in misses) and not any(bar in miss for miss in sound[name])
        wrong += 0 if good else 1
        note = f" (and without it: {'; '.join(sound[name])}{', known' if name in known else ''})" if sound[name] else ""
        print(f"{'ok' if good else 'WRONG':<6} {what:<26} {name:<32} {'; '.join(misses) or 'not noticed'}{note}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
