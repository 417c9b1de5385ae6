#!/usr/bin/env python3
"""A program of a few driver calls, bound with ctypes as scripts do. Prints one line per step, flushed.

  cuda.py alloc MIB             allocates once: prints "alloc <result code>" and exits with the code
  cuda.py hold MIB SECONDS      allocates, prints "holding", sleeps
  cuda.py info                  prints "total <MiB> free <MiB>" by cuMemGetInfo
  cuda.py daemon MIB SECONDS    leaves a process behind that does `hold` and prints its pid
  cuda.py hold-two MIB FILE MIB SECONDS   holds, and once FILE is there asks for more: prints "second <code>"
  cuda.py hold-after FILE MIB SECONDS   the same as hold once FILE is there
  cuda.py asked MIB             holds, prints "holding", and for each line "NAME MIB" on standard input tries to get as
                                much more, prints "NAME <code>" and gives it back
"""

import ctypes
import os
import pathlib
import sys
import time

MIB = 1 << 20


class Card:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", self.cuda.cuInit(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        self.check("cuCtxCreate", self.cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))

    @staticmethod
    def check(name, code):
        if code:
            print(f"{name} {code}", flush=True)
            sys.exit(code if code < 120 else 1)

    def alloc(self, mib):
        pointer = ctypes.c_uint64()
        return self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))

    def tried(self, mib):
        pointer = ctypes.c_uint64()
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
        if code == 0:
            self.check("cuMemFree", self.cuda.cuMemFree_v2(pointer))
        return code

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo", self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return total.value // MIB, free.value // MIB


def hold(mib, seconds):
    card = Card()
    card.check("cuMemAlloc", card.alloc(mib))
    print("holding", flush=True)
    time.sleep(seconds)


def daemon(mib, seconds):
    child = os.fork()
    if child:
        print(child, flush=True)
        return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    hold(mib, seconds)


def main(verb, *rest):
    if verb == "alloc":
        code = Card().alloc(int(rest[0]))
        print(f"alloc {code}", flush=True)
        return code
    if verb == "info":
        print("total {} free {}".format(*Card().info()), flush=True)
    elif verb == "hold":
        hold(int(rest[0]), float(rest[1]))
    elif verb == "daemon":
        daemon(int(rest[0]), float(rest[1]))
    elif verb == "asked":
        card = Card()
        card.check("cuMemAlloc", card.alloc(int(rest[0])))
        print("holding", flush=True)
        for line in sys.stdin:
            name, mib = line.split()
            print(f"{name} {card.tried(int(mib))}", flush=True)
    elif verb == "hold-two":
        card = Card()
        card.check("cuMemAlloc", card.alloc(int(rest[0])))
        print("holding", flush=True)
        while not pathlib.Path(rest[1]).exists():
            time.sleep(0.01)
        print(f"second {card.alloc(int(rest[2]))}", flush=True)
        time.sleep(float(rest[3]))
    elif verb == "hold-after":
        while not pathlib.Path(rest[0]).exists():
            time.sleep(0.01)
        hold(int(rest[1]), float(rest[2]))
    else:
        sys.exit(__doc__)
    return 0


sys.exit(main(*sys.argv[1:]))
