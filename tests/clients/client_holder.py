"""Holds memory and keeps a card busy with kernels of 0.2 ms until its input ends: something for viewers to see."""

import ctypes
import json
import os
import select
import sys

from cuda.bindings import driver
from client import PTX_TEMPLATE


def ok(result):
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"holder: {result[0]}")
    return result[1] if len(result) == 2 else result[1:]


def main():
    ok(driver.cuInit(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))
    ok(driver.cuCtxSetCurrent(context))
    pointer = ok(driver.cuMemAlloc(256 << 20))
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX_TEMPLATE.encode())), b"work"))
    arguments = ((int(pointer), 16), (ctypes.c_void_p, ctypes.c_uint32))
    announced = False
    while True:
        for _ in range(50):
            ok(driver.cuLaunchKernel(function, 1000, 1, 1, 256, 1, 1, 0, 0, arguments, 0))
        ok(driver.cuCtxSynchronize())
        if not announced:
            free, total = ok(driver.cuMemGetInfo())
            print(json.dumps({"client": "holder", "pid": os.getpid(), "used_bytes": total - free}), flush=True)
            announced = True
        if select.select([sys.stdin], [], [], 0)[0] and not sys.stdin.read(1):
            return


main()
