"""Shows that the launch benchmark measures: the same driver twice differs by nothing, the one with 200 instructions more
per launch by 200. Counts instructions, so it holds on a busy machine."""

import os
import pathlib
import sys
import time

import launch_path

EXTRA = 200
GATED_LAUNCHES = 4000
GATED_MOST_S = 4


def main():
    build = os.environ["SLUICE_BUILD"]
    program = f"{build}/bin/launch_path"
    try:
        plain, tool = launch_path.instructions_per_launch(program, f"{build}/null_driver/libcuda.so.1")
        again, _ = launch_path.instructions_per_launch(program, f"{build}/null_driver/libcuda.so.1")
        slow, _ = launch_path.instructions_per_launch(program, f"{build}/null_driver_slow/libcuda.so.1")
    except launch_path.CannotCount as reason:
        print(f"skipped: {reason}")
        return 77
    print(f"{tool}: {plain:.2f} and {again:.2f} instructions per launch, {slow:.2f} with {EXTRA} more")
    if abs(plain - again) > 0.5:
        print("FAILED: the same driver twice should take the same number of instructions")
        return 1
    if not EXTRA - 2 < slow - plain < EXTRA + 5:
        print(f"FAILED: expected {EXTRA} more instructions, counted {slow - plain:.2f}")
        return 1
    timed = launch_path.run([program, "--baseline", f"{build}/null_driver/libcuda.so.1", "--candidate",
                             f"{build}/null_driver_slow/libcuda.so.1", "--threads", "1,2", "--batches", "20"])
    print(timed.stdout + timed.stderr, end="")
    if timed.returncode != 0 or len(timed.stdout.splitlines()) != 2:
        print("FAILED: the timed comparison should print one line per number of threads")
        return 1
    return gated(build, program)


def gated(build, program):
    """Under a share, over a driver whose work ends at once: a wake-up that is lost at the gate costs 5 ms a unit."""
    script = pathlib.Path(__file__).with_name("in_container.sh")
    began = time.monotonic()
    done = launch_path.run(["bash", str(script), build, "300", program, "--baseline", f"{build}/guest/libcuda.so.1",
                            "--count", str(GATED_LAUNCHES)])
    took = time.monotonic() - began
    if "unshare" in done.stderr or "needs root" in done.stderr:
        print(f"left out: no mount namespace here ({done.stderr.strip()})")
        return 0
    print(f"{GATED_LAUNCHES} launches under a share of 30 % over the null driver: {took:.2f} s")
    if done.returncode != 0 or took > GATED_MOST_S:
        print(f"FAILED: expected at most {GATED_MOST_S} s; {done.stderr}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
