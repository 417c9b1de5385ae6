"""The whole stack where it could be built: the agent, `sluice run` and `sluice doctor` on this card."""

import shutil

from machine import MIB


def check_stack(context):
    what = "sluice run and doctor with the agent"
    if not context.build.full:
        context.results.skip("stack", what, context.build.left_out)
        return
    tool = shutil.which("nvidia-smi")
    units = max(1, context.machine.memory_mib // 1024)
    asked = min(10, units)
    limit = context.machine.memory_mib * asked // units
    with context.run_directory() as environment:
        sluice = context.build.tools / "sluice"
        run = [sluice, "run", "--gpu-mem", asked, "--gpu-core", 30, "--"]
        if tool:
            done = context.run([*run, tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"], env=environment)
            context.results.judge("stack", f"sluice run --gpu-mem {asked}: nvidia-smi's memory.total", done.stdout.strip() == str(limit),
                                  done.stdout.strip() or done.stderr.strip()[-200:], str(limit))
        done = context.run([*run, *context.python_program("driver_program.py", "fill", 256, 2)], env=environment)
        got = context.answer("stack", "memory limit under sluice run", done)
        if got is not None:
            used = (got["taken"] + got["before"]["total"] - got["before"]["free"]) / MIB
            context.results.judge("stack", "memory limit under sluice run", limit - 4 <= used <= limit, f"{used:.1f} MiB", f"{limit - 4} to {limit} MiB")
        done = context.run([sluice, "doctor"], env=environment)
        broken = [line for line in done.stdout.splitlines() if line.startswith("broken")]
        context.results.judge("stack", "sluice doctor", done.returncode == 0, f"exit {done.returncode}, {len(broken)} broken", "0 broken",
                              "; ".join(broken)[:300])


CHECKS = {"stack": [check_stack]}
