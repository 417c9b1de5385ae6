#!/usr/bin/env python3
"""Driver calls through ctypes, for checks that need no PyTorch. One line of JSON per answer.

  driver_program.py pointers TABLE [HOOKS]   cuGetProcAddress against dlsym, for every name of src/abi/cuda_names.tsv; with
                                     src/guest/hooks.inc also whether hooked names lead away from the real driver
  driver_program.py context          makes a context, prints what cuMemGetInfo says, waits for a line after each step
  driver_program.py view             total and free by cuMemGetInfo, total by cuDeviceTotalMem and by NVML
  driver_program.py fill MIB LEAST   allocates blocks of MIB, then halves, down to LEAST: how much there is
  driver_program.py hold MIB SECONDS holds a context and so much memory
"""

import ctypes
import json
import os
import re
import sys
import time

LEGACY_STREAM, PER_THREAD_STREAM = 1, 2  # CU_GET_PROC_ADDRESS_*
OUT_OF_MEMORY = 2


def answer(**figures):
    print(json.dumps(figures), flush=True)


class Driver:
    def __init__(self):
        self.api = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        code = getattr(self.api, name)(*arguments)
        if code:
            raise SystemExit(f"{name} answers {code}")

    def open(self):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), int(os.environ.get("SLUICE_GPU_CARD", "0")))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        return device

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free": free.value, "total": total.value}

    def allocate(self, size):
        """An address, or None when the driver says that there is no memory; other answers end the program."""
        address = ctypes.c_uint64()
        code = self.api.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if code not in (0, OUT_OF_MEMORY):
            raise SystemExit(f"cuMemAlloc answers {code}")
        return address if code == 0 else None


def mappings():
    """(first address, end, inode) of every mapping of a file."""
    found = []
    for line in open("/proc/self/maps", encoding="utf-8"):
        span, _, _, device, inode = line.split(None, 5)[:5]
        first, end = (int(word, 16) for word in span.split("-"))
        if inode != "0":
            found.append((first, end, f"{device}:{inode}"))
    return found


def file_of(address, maps):
    return next((file for first, end, file in maps if first <= address < end), None)


def pointers(table, hooks=None):
    driver = Driver()
    version = ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    look_up = getattr(driver.api, "cuGetProcAddress_v2", None)
    if look_up is None:
        raise SystemExit("this driver has no cuGetProcAddress_v2 (before CUDA 12)")
    hooked = set(re.findall(r"^SLUICE_HOOK\((\w+),", open(hooks, encoding="ascii").read(), re.M)) if hooks else set()
    maps, asked_of = mappings(), {}
    ours = file_of(ctypes.cast(driver.api.cuInit, ctypes.c_void_p).value, maps)
    real = ctypes.CDLL("/run/sluice/container/driver/real-cuda") if hooks else None
    same, differ, only_symbol, only_look_up, newer = 0, [], [], [], 0
    for line in open(table, encoding="ascii"):
        if line.startswith("#"):
            continue
        name, base, since, stream = line.split("\t")[:4]
        if int(since) > version.value:
            newer += 1
            continue
        pointer, status = ctypes.c_void_p(), ctypes.c_int()
        flags = ctypes.c_uint64(PER_THREAD_STREAM if stream != "-" else LEGACY_STREAM)
        code = look_up(base.encode(), ctypes.byref(pointer), int(since), flags, ctypes.byref(status))
        asked = pointer.value if code == 0 else None
        if asked and name in hooked:
            straight = ctypes.cast(getattr(real, name), ctypes.c_void_p).value if hasattr(real, name) else None
            asked_of[name] = file_of(asked, maps) == ours and asked != straight
        try:
            exported = ctypes.cast(getattr(driver.api, name), ctypes.c_void_p).value
        except AttributeError:
            exported = None
        if asked and exported:
            same += asked == exported
            differ += [name] if asked != exported else []
        elif exported:
            only_symbol.append(name)
        elif asked:
            only_look_up.append(name)
    answer(driver_version=version.value, same=same, differ=differ, only_symbol=only_symbol, only_look_up=only_look_up,
           newer_than_driver=newer, hooked=sum(asked_of.values()), not_hooked=[name for name, good in asked_of.items() if not good])


def context():
    driver = Driver()
    answer(step="init")
    sys.stdin.readline()
    driver.open()
    answer(step="context", **driver.info())
    sys.stdin.readline()
    block = driver.allocate(1 << 20)
    answer(step="1 MiB", allocated=block is not None, **driver.info())
    sys.stdin.readline()


def view():
    driver = Driver()
    device = driver.open()
    total = ctypes.c_size_t()
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    nvml, handle, figures = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    for code in (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)),
                 nvml.nvmlDeviceGetMemoryInfo(handle, figures)):
        if code:
            raise SystemExit(f"NVML answers {code}")
    answer(cuda=driver.info(), cuda_total=total.value, nvml={"total": figures[0], "free": figures[1]})


def fill(block_mib, least_mib):
    driver = Driver()
    driver.open()
    before, size, held, refused = driver.info(), block_mib << 20, [], 0
    taken = 0
    while size >= least_mib << 20:
        block = driver.allocate(size)
        if block is None:
            refused += 1
            size //= 2
        else:
            held.append(block)
            taken += size
    full = driver.info()
    for block in held:
        driver.call("cuMemFree_v2", block)
    again = driver.allocate(block_mib << 20) is not None
    answer(taken=taken, refused=refused, before=before, full=full, after=driver.info(), works_again=again)


def hold(mib, seconds):
    driver = Driver()
    driver.open()
    answer(step="holding", given=driver.allocate(mib << 20) is not None)
    time.sleep(seconds)


def main(verb="", *rest):
    if verb == "pointers":
        pointers(*rest)
    elif verb == "context":
        context()
    elif verb == "view":
        view()
    elif verb == "fill":
        fill(int(rest[0]), int(rest[1]))
    elif verb == "hold":
        hold(int(rest[0]), float(rest[1]))
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
