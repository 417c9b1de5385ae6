#!/usr/bin/env python3
"""Runs the committed accuracy scenarios and holds each against its bars.

Without options: 2 seeds x 20 s of each. --full: 20 seeds x 60 s, and docs/accuracy.md is written from the results, with
a plot of each scenario with several containers beside it. Before that every scenario is run once without any gate, and
the busy time that the library measured is held against the card's log.
A scenario without a result, or a bar that is missed and not listed in tests/accuracy/missed.json, fails.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "tests/accuracy/scenarios.json"


SETTLED_BAR = 0.005  # busy time as measured against the log, before any gate
SETTLED_SECONDS = 12


def run(binary, scenario, seeds, seconds, plot=None):
    body = {key: value for key, value in scenario.items() if key not in ("row", "bars", "least_seconds")}
    seconds = max(seconds, scenario.get("least_seconds", 0))
    command = [binary, "-", "--json", "--seeds", str(seeds), "--seconds", str(seconds)]
    if plot:
        command += ["--plot", str(plot)]
    done = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True)
    if done.returncode != 0:
        return {"name": scenario["name"], "error": done.stderr.strip() or f"exit code {done.returncode}"}
    return json.loads(done.stdout)


EVENTS = ("start_s", "stop_s", "kill_s", "freeze_s", "thaw_s", "lives_s", "every_s", "changes")


def run_ungated(binary, scenario):
    """Each program alone with its gate open and everything measured: the largest error, or why there is none.

    Alone, since without turns several containers would run in each other's time slices, which no marker can tell apart.
    """
    worst = 0.0
    for container in scenario["containers"]:
        if "lies" in container:
            continue
        alone = {key: value for key, value in container.items() if key not in EVENTS}
        alone["streams"] = [{k: v for k, v in one.items() if k != "hangs_after"} for one in alone["streams"]]
        changed = {**scenario, "containers": [alone], "gated": False, "least_seconds": 0}
        result = run(binary, changed, 1, SETTLED_SECONDS)
        if "error" in result:
            return result["error"]
        error = result["containers"][0]["settled_error"]
        if error is None:
            return "nothing was measured"
        worst = max(worst, abs(error))
    return worst


def misses(scenario, result):
    """Sentences, one per bar that is missed."""
    if "error" in result:
        return [f"no result: {result['error']}"]
    bars, found = scenario["bars"], []
    seconds = result["seconds"]

    def at_most(what, value, bar):
        if value > bar:
            found.append(f"{what} {value:.3f}, bar {bar:.3f}")

    def at_least(what, value, bar):
        if value < bar:
            found.append(f"{what} {value:.4f}, bar {bar}")

    first, last = result["containers"][0], result["containers"][-1]
    for one in result["containers"]:
        if not one["measured"]:  # a slot without a program, or one that comes and goes
            continue
        name = one["name"]
        for figure, what in (("worst_1s_points", "worst second"), ("over_1s_points", "above the quota")):
            if figure in bars:
                at_most(f"{name}: {what}", one[figure], bars[figure])
        if "worst_10s_points" in bars and seconds >= 12:
            at_most(f"{name}: worst 10 s", one["worst_10s_points"], bars["worst_10s_points"])
        if "mean_points" in bars:
            at_most(f"{name}: mean", abs(one["mean_percent"] - one["target_percent"]), bars["mean_points"])
        if bars.get("long_unit"):
            unit_s = one["longest_unit_us"] / 1e6
            at_most(f"{name}: worst second", one["worst_1s_points"], 0.4 + 100 * unit_s)
            if seconds >= 12:
                at_most(f"{name}: worst 10 s", one["worst_10s_points"], 0.1 + 10 * unit_s)
            if seconds >= 302:
                at_most(f"{name}: worst 5 min", one["worst_300s_points"], 0.1)
        if "delivered" in bars:
            at_least(f"{name}: delivered", one["delivered_of_target"], bars["delivered"])
        if "settled" in bars:
            at_most(f"{name}: settled", abs(one["settled_error"] or 0), bars["settled"])
        if "slowdown" in bars and not one["slowdown"]:
            found.append(f"{name}: hangs")
        if "slowdown" in bars:
            at_most(f"{name}: time against no library", one["slowdown"], bars["slowdown"])
    for bar, what, value in (
            ("first_1s_points", f"{first['name']}: worst second", first["worst_1s_points"]),
            ("first_pause_ms", f"{first['name']}: longest time without the card", first["longest_pause_ms"]),
            ("first_wait_ms", f"{first['name']}: longest wait", first["worst_wait_ms"]),
            ("latency_p50_ms", f"{first['name']}: median latency", first["latency_p50_ms"]),
            ("latency_p99_ms", f"{first['name']}: 99th percentile of latency", first["latency_p99_ms"]),
            ("last_mean_points", f"{last['name']}: mean", abs(last["mean_percent"] - last["target_percent"])),
            ("longest_idle_ms", "card idle for ms", result["longest_idle_ms"])):
        if bar in bars:
            at_most(what, value, bars[bar])
    if "first_delivered" in bars:
        at_least(f"{first['name']}: delivered", first["delivered_of_target"], bars["first_delivered"])
    if "card_busy" in bars:
        at_least("card busy", result["card_busy"], bars["card_busy"])
    return found


LIMITS = """## What no rule makes exact

- One function that takes 5 us and once in 200 launches 20 ms is off by 7 to 8 points in its worst second: nobody can know
  before which launch it will be.
- Containers take turns, so a program that keeps the card busy for a part u of its own turn needs its share divided by u of
  the time. Where it synchronises at every launch, u is what it uses alone: 0.59 with kernels of 30 us, 0.84 with 100 us.
  30 % of such kernels of 30 us take 51 % of the time: beside 50 % the two do not fit on the card (26.8 of 30 are delivered),
  beside 70 % it gets u times what is left (16.7; with kernels of 100 us 24.1, of 400 us 28.4). The neighbour keeps its share
  to 0.3 points. As long as the times add up to no more than the card, both are exact (100 us: 30.0 beside 50).
- The extreme of that: kernels of some us, each launched on its own some ten us after the last one. Alone they use little of
  the card; beside neighbours that fill it each launch waits for a turn (2.4 us every 37 us beside 60 %: 2.8 of 7.4 %).
- A program that pauses and comes back finds the card taken, and waits for up to the rest of a turn of 4 ms: with steps of
  2.4 ms and pauses as long it gets 0.95 of what it would use alone beside three others that use 20 % together. High priority mends that.
- A request of high priority waits for the kernels that a neighbour has on the card. Beside a trainer that runs for 0.91 of
  the rest of the time, with kernels whose remaining time is 226 us on average (log-normal, 184 us in the mean), that is 0.21
  ms of 17: at most 0.988 of what the server would use alone, whatever the rule. A second kernel in flight, without which
  the card runs dry after each, takes the rest: 0.978 to 0.982 of runs of 14 to 60 s, the row's bar is 0.98. Letting the second one in only just
  before the first ends gave 0.982, and took 4 points of the card from a trainer without a share.
- A program that launches far ahead and then works on the host waits at the gate instead, since little more than 1 ms of work is
  let through at once: 8 ms of kernels launched before 20 ms of work on the host take 28 ms together, not 20.
- Kernels much shorter than a launch (0.5 us): pauses between them count as busy time up to 5 us and not beyond, so a launch
  that is a little late decides. Their share is off by up to 5 %; three times slower hosts move this to kernels of 4 us.
  So does one draw in twenty of the host's costs with kernels of 5 us: measured 2 % too low, the rows of 5 us at 30 and 95 %
  miss their bars with that seed alone (in this form; the short form has two seeds).
- Containers without shares among themselves, and the policy `native`, are left to the card's own time slices.
"""

KEYS = """## Scenario files

`sluice-accuracy FILE [--json] [--plot out.svg] [--seeds N] [--seconds S]` runs one scenario, a JSON object:

| Key | Meaning |
|---|---|
| `card`, `seconds`, `seed`, `policy`, `host` | profile of the card; length (3 to 3600); first seed; `fair` .. `native` or 0 to 5; host profile `normal`, `busy`, `0x`, `1x`, `3x` |
| `max_containers`, `gated` | of the card, for `fair`; false: everything is measured and nothing held back |
| `containers[]`: `name`, `percent`, `weight`, `high_priority`, `processes`, `start_s`, `stop_s` | no `percent`: no cap; the program starts and ends |
| `kill_s`, `freeze_s`, `thaw_s`, `changes` | all its processes are killed or stopped, as soon as it has work on the card; go on; `[[seconds, percent], ..]` |
| `lives_s`, `every_s` | it comes every so often and is killed after so long |
| `cards` | it uses cards 0 to n - 1, with a context and all streams on each |
| `lies` | `"waits"`, `"never drains"`: no program, a slot that claims this |
| `streams[]` (in every process): `kernel_us`, `graph_nodes`, `grid`, `cooperative` | a unit is a kernel or a graph of so many; blocks |
| `per_block` | `kernel_us` is the time of one block, taken once per wave of blocks |
| `sync`, `copy_us`, `gap_us` | `"never"`, `"launch"`, `{"every": units}`; a copy before and a pause after each (after each unit if never) |
| `host_functions`, `orders` | after every 50th unit: a host function; a copy from the host, an event and a value that are waited for |
| `collective` | `{"every": units, "us": x}`: a kernel that ends once those of all such streams of the process have begun |
| `hangs_after` | units; then a kernel that never ends |

`kernel_us`, `gap_us` and `grid` take a number, `{"fixed": x}`, `{"uniform": [a, b]}`, `{"lognormal": {"median", "sigma", "max"}}` or
`{"choice": [..]}`. Figures: `card_busy` and `delivered_of_target` are 0 to 1, `worst_*_points` the largest difference of share and
target in any window, `over_*_points` above the quota, `slowdown` the rate of units alone without the library over the rate found.
"""

HEADER = ["scenario", "container", "quota", "target", "mean", "executing", "worst 1 s", "worst 10 s", "over 1 s",
          "delivered", "uncapped", "longest wait ms", "latency p50 / p99 ms", "card busy", "settled before any gate", "bars"]


def row_cells(scenario, result, ungated, missed, index, one):
    first = index == 0
    cells = [scenario["name"] if first else "", one["name"]]
    if not one["measured"]:
        cells += [f"{one['quota_percent']:g}", "", f"{one['mean_percent']:.2f}"] + [""] * 5
    else:
        cells += [f"{one['quota_percent']:g}", f"{one['target_percent']:.2f}", f"{one['mean_percent']:.2f}",
                  f"{one['executing_percent']:.2f}", f"{one['worst_1s_points']:.2f}", f"{one['worst_10s_points']:.2f}",
                  f"{one['over_1s_points']:.2f}", f"{one['delivered_of_target']:.4f}"]
    cells += [f"{one['uncapped_percent']:.1f}", f"{one['worst_wait_ms']:.1f}"]
    steps = one["latency_p99_ms"] > 0
    cells += [f"{one['latency_p50_ms']:.2f} / {one['latency_p99_ms']:.2f}" if steps else ""]
    if not first:
        return cells + [""] * 3
    cells += [f"{result['card_busy']:.4f}"]
    cells += ["no result" if isinstance(ungated, str) else f"{ungated * 100:.3f} %"]
    return cells + ["met" if not missed else "missed: " + "; ".join(missed)]


# Misses that only the full form shows, and why; the short form has to meet these bars.
FULL_ONLY = {
    "lone-30-5us": "One draw in twenty of the host's costs: see the last but one of the points above. The other nineteen are within 0.52",
    "lone-95-5us": "As lone-30-5us",
    "burst-lends-and-takes-back": "One or some of twenty seeds. A program that comes back from a pause waits for the rest of the turn that was lent, "
                                  "see above; how much of the miss that is was not measured",
}


def document(path, scenarios, results, ungated, failed, reasons, about):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    lines = ["# Accuracy of compute shares", "",
             "Generated by `script/accuracy --full`; do not edit. Each row runs the objects of the shipped libraries and of",
             "the agent over a simulated card, in virtual time; every figure comes from the card's own log of occupied time,",
             "in windows that slide by 10 ms from 2 s on. `executing` is the time in which a kernel ran, without the pauses",
             "between kernels; `delivered` is the mean over the target; `uncapped` is the program alone without the library;",
             "latency is from the first launch of a step to the end of its synchronisation. `settled before any gate` is the",
             "largest difference between the busy time that the library measured and the log's, in a run of the same",
             f"programs with all gates open (bar {SETTLED_BAR:.1%}). A container without a target has no program of its own",
             "or comes and goes.", "",
             f"Commit {commit.strip()}, {about}", "",
             *LIMITS.splitlines(), ""]
    if reasons:
        lines += ["## Bars that are missed", ""]
        lines += [f"- `{name}`: {'; '.join(failed[name])}. {reasons.get(name) or FULL_ONLY.get(name, 'Not explained.')}" for name in failed]
    row = None
    for scenario, result in zip(scenarios, results):
        name = scenario["name"]
        if scenario["row"] != row:
            row = scenario["row"]
            lines += ["", f"## {row[0].upper()}{row[1:]}", "", "| " + " | ".join(HEADER) + " |",
                      "|" + "---|" * len(HEADER)]
        missed = failed.get(name, [])
        if "error" in result:
            lines.append(f"| {name} | no result: {result['error']} |" + " |" * (len(HEADER) - 2))
            continue
        for index, one in enumerate(result["containers"]):
            lines.append("| " + " | ".join(row_cells(scenario, result, ungated[name], missed, index, one)) + " |")
    lines += ["", KEYS.rstrip()]
    plots = [name for name in (s["name"] for s in scenarios) if (ROOT / f"docs/images/accuracy/{name}.svg").exists()]
    lines += ["", "## Plots", "", "Shares of each second, of the first seed.", ""]
    lines += [f"![{name}](images/accuracy/{name}.svg)" for name in plots]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="20 seeds x 60 s, writes docs/accuracy.md")
    parser.add_argument("--build", default=os.environ.get("SLUICE_BUILD", ROOT / "build/dev"), help="build folder")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", help="scenarios whose name holds this")
    parser.add_argument("--write", help="write the document to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    seeds = options.seeds or (20 if options.full else 2)
    seconds = options.seconds or (60 if options.full else 20)
    binary = str(pathlib.Path(options.build) / "bin/sluice-accuracy")
    scenarios = [s for s in json.loads(SCENARIOS.read_text()) if not options.only or options.only in s["name"]]
    known = json.loads((ROOT / "tests/accuracy/missed.json").read_text())
    images = ROOT / "docs/images/accuracy"
    if options.full:
        images.mkdir(parents=True, exist_ok=True)
    began = time.time()

    def all_of(scenario):
        plots = options.full and len(scenario["containers"]) > 1
        plot = images / f"{scenario['name']}.svg" if plots else None
        return run(binary, scenario, seeds, seconds, plot), run_ungated(binary, scenario)

    failed, results, ungated = {}, [], {}
    unexpected = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for scenario, (result, settled) in zip(scenarios, pool.map(all_of, scenarios)):
            name = scenario["name"]
            results.append(result)
            ungated[name] = settled
            missed = misses(scenario, result)
            if isinstance(settled, str):
                missed.append(f"no result without a gate: {settled}")
            elif settled > SETTLED_BAR:
                missed.append(f"measured before any gate off by {settled:.4f}, bar {SETTLED_BAR}")
            if missed:
                failed[name] = missed
            expected = name in known and "error" not in result
            if missed and not expected:
                unexpected += 1
            mark = "ok" if not missed else ("known miss" if expected else "MISSED")
            print(f"{mark:<10} {name:<36} {'; '.join(missed)}", flush=True)
    path = options.write or (ROOT / "docs/accuracy.md" if options.full else None)
    if path:
        hours = (time.time() - began) / 3600
        about = (f"{seeds} seed(s) x {seconds:g} s of each scenario (longer where a row needs it), the worst counts; "
                 f"{hours:.2f} hours of one machine.")
        document(path, scenarios, results, ungated, failed, known, about)
    print(f"{len(scenarios) - len(failed)} of {len(scenarios)} rows within their bars, {unexpected} unexpected misses, "
          f"{time.time() - began:.0f} s")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
