#!/usr/bin/env python3
"""Upper bound on what any placement could allocate of an openb trace, by a linear program.

Needs scipy (pip install scipy). For each trace and load X it knows the whole demand of the first X % of arrivals in
advance, may refuse pods at will, may split pods over nodes of one model and may use the CPU of a model's nodes as one
pool. What stays is what no placement can change: cards of each model, their CPU, allowed models, and that shares must
fit on single cards (cutting-stock patterns; share sizes are rounded down to a short list, which only raises the bound).

    python3 bench/placement/bound.py [--data DIR] [--seed 42] [TRACE ...]
"""
import argparse
import collections
import csv
import gzip
import pathlib
import subprocess
import tempfile

from scipy.optimize import linprog
from scipy.sparse import lil_matrix

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACES = ["default", "cpu050", "cpu250", "gpushare60", "gpushare100", "gpuspec20", "gpuspec33", "multigpu20", "multigpu40"]
# The common share sizes, in 1/1000 card; every other size counts as the next smaller one of these.
SIZES = [1000, 810, 650, 590, 550, 470, 460, 370, 320, 230, 220, 160, 110, 50, 10]


def rows(path):
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def arrivals(replay, data, trace, seed):
    """The published order, made by sluice-replay's generator."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([replay, "--data", str(data), "--trace", trace, "--policy", "binpack", "--seed", str(seed),
                        "--generate", "--write-arrivals", folder, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        text = pathlib.Path(folder, f"{trace}.pods.txt").read_text()
    return [int(word) for word in text.split()[1:]]


def patterns(sizes):
    """All ways to fill one card so that not even the smallest size fits any more."""
    found = []

    def extend(index, left, taken):
        if index == len(sizes):
            if left < sizes[-1]:
                found.append(tuple(taken))
            return
        for count in range(left // sizes[index], -1, -1):
            extend(index + 1, left - count * sizes[index], taken + ([(index, count)] if count else []))

    extend(0, 1000, [])
    return found


def demand_of(pods, order, limit_milli):
    """Cards wanted by (milli, allowed models, CPU per card) among the arrivals up to the limit."""
    demand, total = collections.Counter(), 0
    for row in order:
        pod = pods[row]
        cards = int(pod["num_gpu"])
        milli = min(1000, int(pod["gpu_milli"] or 1000)) if cards else 0
        total += cards * milli
        if total > limit_milli:
            break
        if cards:
            demand[milli, pod.get("gpu_spec") or "", int(pod["cpu_milli"]) / cards] += cards
    return demand


def bound(nodes, demand):
    """The most that can be allocated, in percent of all cards."""
    cards, cpu = collections.Counter(), collections.Counter()
    for node in nodes:
        cards[node["model"]] += int(node["gpu"])
        cpu[node["model"]] += int(node["cpu_milli"])
    models, classes = list(cards), list(demand)
    down = {milli: next(size for size in SIZES if size <= milli) for milli, _, _ in classes}
    sizes = sorted(set(down.values()), reverse=True)
    fills = patterns(sizes)
    allowed = [(c, m) for c, (_, spec, _) in enumerate(classes) for m, model in enumerate(models)
               if not spec or model in spec.split("|")]
    first_cpu, first_cards = len(classes), len(classes) + len(models)
    first_size = first_cards + len(models)
    matrix = lil_matrix((first_size + len(models) * len(sizes), len(allowed) + len(models) * len(fills)))
    for column, (c, m) in enumerate(allowed):
        matrix[c, column] = 1
        matrix[first_cpu + m, column] = classes[c][2]
        matrix[first_size + m * len(sizes) + sizes.index(down[classes[c][0]]), column] = 1
    for m in range(len(models)):
        for f, fill in enumerate(fills):
            column = len(allowed) + m * len(fills) + f
            matrix[first_cards + m, column] = 1
            for size, count in fill:
                matrix[first_size + m * len(sizes) + size, column] = -count
    limits = ([demand[key] for key in classes] + [cpu[model] for model in models] + [cards[model] for model in models]
              + [0] * (len(models) * len(sizes)))
    gain = [-classes[c][0] for c, _ in allowed] + [0] * (len(models) * len(fills))
    solved = linprog(gain, A_ub=matrix.tocsr(), b_ub=limits, bounds=(0, None), method="highs")
    if solved.status != 0:
        raise SystemExit(f"bound: the linear program was not solved: {solved.message}")
    return min(100.0, -solved.fun / (10 * sum(cards.values())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=TRACES)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "tests/data/openb")
    parser.add_argument("--replay", default=str(ROOT / "build/release/bin/sluice-replay"))
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    nodes = rows(arguments.data / "openb_node_list_gpu_node.csv.gz")
    capacity = 1000 * sum(int(node["gpu"]) for node in nodes)
    for trace in arguments.traces:
        pods = rows(arguments.data / f"openb_pod_list_{trace}.csv.gz")
        order = arrivals(arguments.replay, arguments.data, trace, arguments.seed)
        values = [bound(nodes, demand_of(pods, order, percent / 100 * capacity)) for percent in (100, 130)]
        print(f"{trace:<12} {values[0]:.2f} {values[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
