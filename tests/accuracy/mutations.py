#!/usr/bin/env python3
"""Takes a rule out of the library, one at a time, and asserts that a named row goes red: a bar that cannot fail is none.

Mutations are guest::Mutation bits and the measurement's scale; the shipped library has neither switched on.
"""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "script"))
import accuracy  # noqa: E402

SECONDS = 13
CASES = [
    # what is taken out, scenario, overrides
    ("measurement 10 % too low", "lone-30-log-normal", {"measure_permille": 900}),
    ("measurement 10 % too low", "settle-log-normal", {"measure_permille": 900}),
    ("marker cost not subtracted", "settle-5us", {"mutations": 1}),
    ("drain reported at once", "turns-4x25", {"mutations": 4}),
]


def main():
    binary = str(pathlib.Path(os.environ["SLUICE_BUILD"]) / "bin/sluice-accuracy")
    scenarios = {s["name"]: s for s in json.loads((HERE / "scenarios.json").read_text())}
    wrong = 0
    for what, name, overrides in CASES:
        scenario = scenarios[name]
        sound = accuracy.misses(scenario, accuracy.run(binary, scenario, 1, SECONDS), SECONDS)
        spoiled = accuracy.misses(scenario, accuracy.run(binary, {**scenario, **overrides}, 1, SECONDS), SECONDS)
        good = not sound and bool(spoiled)
        wrong += 0 if good else 1
        print(f"{'ok' if good else 'WRONG':<6} {what} in {name}: {'; '.join(spoiled) or 'not noticed'}"
              + (f" (and red without it: {'; '.join(sound)})" if sound else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
