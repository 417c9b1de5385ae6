"""Cost of a launch with and without a library in front of the driver: instructions per launch, and time ratios.

    launch_path.py --program build/release/bin/launch_path --baseline NULL_DRIVER --candidate LIBRARY [--time]
    launch_path.py --guest build/release     what the guest library adds, free and under a share (needs root)

Instructions are those of the launching thread, counted one by one (stepped.h): exact, and the figure to judge by, since
time on a shared machine is not. The middle one of some launches is what a launch costs; the first of them, which finds
its stream idle, and the mean say what is done once in a while. Prints one line of JSON. As a module, stepped() is what
tests use.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

LAUNCHES = 100
WARM_UP = 999


class CannotCount(Exception):
    """Instructions cannot be counted here; the message says why."""


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def stepped(program, library, launches=LAUNCHES, run_in=0, prefix=(), driver="null_driver"):
    """Instructions of each launch, the loop around it included; raises CannotCount."""
    # Of the null driver whose streams take time: slowed as the launches are.
    environment = dict(os.environ, DRIVER=driver, SLUICE_NULL_SLOW_AFTER=str(WARM_UP + 1), SLUICE_NULL_RECORD_NS="0")
    result = run([*prefix, program, "--baseline", library, "--step", str(launches), "--warm-up", str(WARM_UP),
                  "--run-in", str(run_in)], env=environment)
    if result.returncode != 0:
        raise CannotCount(result.stderr.strip()[-300:])
    return json.loads(result.stdout)


def added_by_guest(build):
    """Instructions that the guest library adds to a launch, as {what: number}; raises CannotCount."""
    program, guest = f"{build}/bin/launch_path", f"{build}/guest/libcuda.so.1"
    script = str(pathlib.Path(__file__).with_name("in_container.sh"))

    def least(share, driver, quantile=0.0, **options):
        inside = stepped(program, guest, prefix=("bash", script, build, share), driver=driver, **options)
        outside = stepped(program, f"{build}/{driver}/libcuda.so.1", **options)
        return sorted(inside)[int(quantile * len(inside))] - min(outside)

    return {
        # Nothing is measured: exact.
        "free": least("free", "null_driver", launches=20),
        # Launches number 41 to 46 after an idle stream lie within a segment that has room for them. A thread that was
        # put off the processor in the microseconds before has lost its segment: then once more.
        "gated": min(least("990", "null_driver_timed", launches=6, run_in=40) for _ in range(5)),
        # Stepped launches find their streams silent, so each opens a segment; what they settle there varies.
        "segment": least("990", "null_driver_timed", quantile=0.25, launches=60),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program")
    parser.add_argument("--baseline")
    parser.add_argument("--candidate")
    parser.add_argument("--guest", metavar="BUILD")
    parser.add_argument("--time", action="store_true", help="also measure time, interleaved, with 1 and 8 threads")
    arguments = parser.parse_args()
    if not arguments.guest and not (arguments.program and arguments.baseline and arguments.candidate):
        parser.error("--program, --baseline and --candidate are needed, or --guest")
    try:
        if arguments.guest:
            print(json.dumps(added_by_guest(arguments.guest)))
            return 0
        baseline = stepped(arguments.program, arguments.baseline)
        candidate = stepped(arguments.program, arguments.candidate)
    except CannotCount as reason:
        print(f"launch_path: {reason}", file=sys.stderr)
        return 1
    middle = statistics.median(baseline)
    result = {"baseline_instructions": middle, "candidate_instructions": statistics.median(candidate),
              "added_instructions": statistics.median(candidate) - middle,
              "added_first": candidate[0] - middle, "added_mean": statistics.mean(candidate) - middle}
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
