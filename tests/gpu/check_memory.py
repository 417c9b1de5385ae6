"""What a context costs, and that a memory limit holds and is what programs see."""

import shutil
import subprocess
import time

from containers import Containers
from machine import MIB

OUT_OF_MEMORY = 2


def settled_used(machine):
    """NVML's used once it stands still: a program that has ended gives its memory back a little later."""
    used, still = machine.memory()["used"], 0
    while still < 8:
        time.sleep(0.1)
        now = machine.memory()["used"]
        still, used = (still + 1 if now == used else 0), now
    return used


def check_context_bytes(context):
    """Also sets context.context_mib, which later checks give as the estimate."""
    machine = context.machine
    program = subprocess.Popen([str(word) for word in context.python_program("driver_program.py", "context")],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        before, steps = settled_used(machine), {}
        for step in ("init", "context", "1 MiB"):
            answer = context.last_json(program.stdout.readline() or "{}")
            if answer.get("step") != step:
                context.results.add("memory", "context bytes", f"the program ended at '{step}'", verdict="failed")
                return
            time.sleep(0.3)
            steps[step] = (machine.memory()["used"] - before, machine.process_bytes(program.pid), answer)
            program.stdin.write("\n")
            program.stdin.flush()
    finally:
        program.kill()
        program.wait()
    by_card, by_process, info = steps["context"]
    context.context_mib = max(64, -(-by_card // MIB) + 16)
    context.results.add("memory", "a context, by NVML's used of the card", f"{by_card / MIB:.1f} MiB")
    context.results.add("memory", "a context, by NVML's list of processes",
                        f"{by_process / MIB:.1f} MiB" if by_process is not None else "not listed")
    context.results.add("memory", "total - free by cuMemGetInfo in it", f"{(info['total'] - info['free']) / MIB:.1f} MiB",
                        note=f"NVML says {machine.memory()['total'] / MIB:.0f} MiB in all, CUDA {info['total'] / MIB:.0f}")
    context.results.add("memory", "1 MiB allocated takes, by NVML", f"{(steps['1 MiB'][0] - by_card) / MIB:.1f} MiB")


def check_view(context):
    limit = context.limit_mib
    with Containers(context, a=(limit, 0)) as node:
        done = node.run("a", context.python_program("driver_program.py", "view"))
        seen = context.answer("memory", "what a program sees", done)
        if seen is None:
            return
        totals = {"cuMemGetInfo": seen["cuda"]["total"], "cuDeviceTotalMem": seen["cuda_total"], "NVML": seen["nvml"]["total"]}
        context.results.judge("memory", "total seen in the container", set(totals.values()) == {limit * MIB},
                              ", ".join(f"{name} {value / MIB:g}" for name, value in totals.items()), f"{limit} MiB each")
        context.results.judge("memory", "free by CUDA and by NVML", seen["cuda"]["free"] == seen["nvml"]["free"],
                              f"{seen['cuda']['free']} and {seen['nvml']['free']} bytes", "the same")
        tool = shutil.which("nvidia-smi")
        if tool is None:
            context.results.skip("memory", "nvidia-smi in the container", "there is no nvidia-smi here")
            return
        done = node.run("a", [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"])
        context.results.judge("memory", "nvidia-smi in the container, memory.total", done.stdout.strip() == str(limit),
                              done.stdout.strip() or done.stderr.strip()[-200:], str(limit))


def check_fill(context):
    """To the limit in blocks, then whether it goes on."""
    limit = context.limit_mib
    with Containers(context, a=(limit, 0)) as node:
        got = context.answer("memory", "filling to the limit", node.run("a", context.python_program("driver_program.py", "fill", 256, 2)))
    if got is None:
        return
    used = got["taken"] + got["before"]["total"] - got["before"]["free"]
    context.results.judge("memory", "cuMemAlloc until refused: taken and overhead", limit * MIB - 4 * MIB <= used <= limit * MIB,
                          f"{used / MIB:.1f} MiB, {got['refused']} refusals", f"{limit - 4} to {limit} MiB")
    context.results.judge("memory", "works again after freeing", got["works_again"], got["works_again"], "True")


def check_charge(context):
    """Memory held in a container is charged no less than the card spends on it, and not much more."""
    before = settled_used(context.machine)
    with Containers(context, a=(context.limit_mib, 0)) as node:
        program = node.start("a", context.python_program("driver_program.py", "hold", 1000, 3))
        try:
            program.stdout.readline()
            charged, real = node.latest("a")["reserved_bytes"], settled_used(context.machine) - before
        finally:
            program.kill()
            program.wait()
    context.results.judge("memory", "charged for a context and 1000 MiB", real <= charged <= real + 64 * MIB and real >= 1000 * MIB,
                          f"{charged / MIB:.1f} MiB charged, {real / MIB:.1f} by NVML", "real <= charged <= real + 64 MiB")


def check_allocation_kinds(context):
    limit = context.limit_mib
    torture = context.build.programs / "alloc_torture"
    with Containers(context, a=(limit, 0)) as node:
        done = node.run("a", [torture, "--size-mib", limit + 1, "--mem-mib", 0, "--json"], timeout=600)
    got = context.answer("memory", "every kind of allocation", done)
    if got is None:
        return
    calls = [call for call in got["calls"] if call["kind"] in ("device", "managed")]
    given = [call["name"] for call in calls if call["result"] == 0]
    refused = sum(call["result"] == OUT_OF_MEMORY for call in calls)
    context.results.judge("memory", "ways of allocating, each asked for limit + 1 MiB", not given and refused >= 20,
                          f"{refused} of {len(calls)} refused with out-of-memory, {len(given)} given", "none given",
                          ", ".join(given[:6] + [f"{c['name']}: {c['result_name']}" for c in calls if c["result"] not in (0, 2)][:6]))


CHECKS = {"memory": [check_context_bytes, check_view, check_fill, check_charge, check_allocation_kinds]}
