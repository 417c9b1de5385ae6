"""PyTorch over our libraries: nothing is refused that works without them, the memory limit is an ordinary out-of-memory,
and the example of one exclusive and one shared program."""

import shutil
import subprocess
import threading
import time

from containers import Containers
from machine import MIB



def without_torch(context, check, what):
    """True where there is no PyTorch to ask; then a row says so."""
    if context.torch is None:
        why = ("PyTorch accepts no driver but the vendor's, and this card is simulated" if context.machine.simulated else
               "PyTorch is not installed here (--python names an interpreter that has it)")
        context.results.skip(check, what, why)
    return context.torch is None


def check_parts(context):
    if without_torch(context, "torch", "pass-through: matmul, cuBLAS, cuDNN, graphs, NCCL, CUPTI, Triton"):
        return
    command = context.python_program("torch_program.py", "parts")
    alone = context.answer("torch", "parts without Sluice", context.run(command, timeout=900))
    if alone is None:
        return
    for grant, text in (((0, 0), "no limits"), ((context.limit_mib, 0), "a memory limit"), ((context.limit_mib, 500), "memory and 50 %")):
        with Containers(context, a=grant) as node:
            got = context.answer("torch", f"parts under {text}", node.run("a", command, timeout=900))
        if got is None:
            continue
        for part, result in got.items():
            if result.startswith("skipped"):
                context.results.skip("torch", f"{part}, {text}", result[9:])
            elif result != "ok" and alone[part] != "ok":
                context.results.skip("torch", f"{part}, {text}", f"does not work without Sluice either: {alone[part]}")
            else:
                context.results.judge("torch", f"{part}, {text}", result == "ok", result, "ok")


def check_memory(context):
    if without_torch(context, "torch", "memory limit with PyTorch"):
        return
    limit = context.limit_mib
    with Containers(context, a=(limit, 0)) as node:
        got = context.answer("torch", "memory limit", node.run("a", context.python_program("torch_program.py", "memory")))
    if got is None:
        return
    context.results.judge("torch", "torch.cuda.mem_get_info, total", got["total"] == limit * MIB, f"{got['total'] / MIB:g} MiB", f"{limit} MiB")
    taken = got["reserved_at_oom"] + (got["total"] - got["free"])
    context.results.judge("torch", "OutOfMemoryError at the limit", bool(got["oom"]) and limit - 130 <= taken / MIB <= limit,
                          f"{taken / MIB:.0f} MiB with overhead", f"{limit - 130} to {limit} MiB, in blocks of 64", got["oom"])
    context.results.judge("torch", "goes on after out-of-memory", got["works_again"], got["works_again"], "True")


def watch(context, seconds):
    """Mean of nvidia-smi's GPU-Util and of GPM's graphics engine, while something runs."""
    machine = context.machine
    first, rates, end = machine.gpm_sample(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        rates.append(machine.utilisation())
        time.sleep(0.1)
    second = machine.gpm_sample()
    gpm = machine.gpm_between(first, second)["graphics"] if first is not None and second is not None else None
    for sample in (first, second):
        if sample is not None:
            machine.gpm_free(sample)
    return sum(rates) / len(rates), gpm


def check_example(context):
    """The example: one program alone on the card, and the same one with 10 units of memory and 30 % compute."""
    if without_torch(context, "example", "the example's table with PyTorch"):
        return
    seconds = max(10, 2 * context.seconds)
    command = context.python_program("torch_program.py", "train", seconds)
    shared_limit = context.machine.memory_mib * 10 // max(10, context.machine.memory_mib // 1024)
    for name, grant, wanted in (("exclusive", (0, 0), None), ("shared", (shared_limit, 300), 30.0)):
        with Containers(context, a=grant) as node:
            program = node.start("a", command)
            texts = []
            reader = threading.Thread(target=lambda: texts.extend(program.communicate()), daemon=True)
            reader.start()
            time.sleep(4)  # importing and the first steps
            from_ns = time.monotonic_ns()
            rate, gpm = watch(context, seconds - 3)
            busy = node.busy_percent("a", from_ns, time.monotonic_ns())
            tool = shutil.which("nvidia-smi")
            total = node.run("a", [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]).stdout.strip() if tool else "?"
            reader.join(timeout=120)
            done = subprocess.CompletedProcess(command, program.returncode, *texts)
        got = context.answer("example", name, done)
        if got is None:
            continue
        found = (f"total {total} MiB, GPU-Util {rate:.1f} %, " + (f"GPM {gpm:.1f} %, " if gpm is not None else "") +
                 (f"guest {busy:.1f} %, " if grant[1] else "") + f"{got['per_second']:.2f} steps/s")
        if wanted is None:
            context.results.add("example", name, found)
        else:
            measured = gpm if gpm is not None else busy
            context.timed("example", name, abs(measured - wanted) <= 1, measured <= wanted + 5, found,
                          f"total {shared_limit} MiB, 30 +- 1 %")


CHECKS = {"torch": [check_parts, check_memory], "example": [check_example]}
