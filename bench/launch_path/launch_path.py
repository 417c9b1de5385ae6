"""Cost of a launch with and without a library in front of the driver: instructions per launch, and time ratios.

    launch_path.py --program build/release/bin/launch_path --baseline NULL_DRIVER --candidate LIBRARY [--time]

Instructions per launch are the difference of two counted runs of N and 2 N launches divided by N, so start-up cancels
out. They are counted by `perf stat` where the kernel allows it, else by valgrind, and are the figure to judge by: time
on a shared machine is not. Prints one line of JSON. As a module, instructions_per_launch() is what tests use.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile

LAUNCHES = 20000


class CannotCount(Exception):
    """Neither perf nor valgrind can count instructions here; the message says why."""


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def count_by_perf(command):
    """Instructions in user space, or None where perf is missing or not allowed."""
    if shutil.which("perf") is None:
        return None
    result = run(["perf", "stat", "-x", ",", "-e", "instructions:u", "--", *command])
    match = re.search(r"^(\d+),[^,]*,instructions", result.stderr, re.MULTILINE)
    return int(match[1]) if result.returncode == 0 and match else None


def count_by_valgrind(command):
    if shutil.which("valgrind") is None:
        raise CannotCount("perf does not count here and valgrind is not installed (script/install-deps installs it)")
    with tempfile.TemporaryDirectory() as folder:
        result = run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--", *command])
        match = re.search(r"Collected : (\d+)", result.stderr)
        if result.returncode != 0 or not match:
            raise CannotCount(f"valgrind: {result.stderr.strip()[-300:]}")
        return int(match[1])


def instructions_per_launch(program, library, launches=LAUNCHES):
    """(instructions per launch in the library and the loop around it, the tool that counted); raises CannotCount."""
    commands = [[program, "--baseline", library, "--count", str(n)] for n in (launches, 2 * launches)]
    counts = [count_by_perf(command) for command in commands]
    tool = "perf"
    if None in counts:
        counts, tool = [count_by_valgrind(command) for command in commands], "valgrind"
    return (counts[1] - counts[0]) / launches, tool


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--candidate", required=True)
    parser.add_argument("--time", action="store_true", help="also measure time, interleaved, with 1 and 8 threads")
    arguments = parser.parse_args()
    try:
        baseline, tool = instructions_per_launch(arguments.program, arguments.baseline)
        candidate, _ = instructions_per_launch(arguments.program, arguments.candidate)
    except CannotCount as reason:
        print(f"launch_path: {reason}", file=sys.stderr)
        return 1
    result = {"counted_by": tool, "baseline_instructions": round(baseline, 2),
              "candidate_instructions": round(candidate, 2), "added_instructions": round(candidate - baseline, 2)}
    if arguments.time:
        timed = run([arguments.program, "--baseline", arguments.baseline, "--candidate", arguments.candidate])
        if timed.returncode != 0:
            print(timed.stderr, end="", file=sys.stderr)
            return 1
        result["time"] = [json.loads(line) for line in timed.stdout.splitlines()]
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
