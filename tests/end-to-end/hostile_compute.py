#!/usr/bin/env python3
"""What a tenant may try against its neighbour's share of the card, from inside a container that `sluice run` made: two
programs that would each fill the card work on while this one does it. Prints "attacking" once it has begun, and goes on
until it is killed. The layout is that of src/page/usage.h.

  hostile_compute.py account     zeroes the container's account, again and again
  hostile_compute.py noise       writes random bytes over account and compute slots
  hostile_compute.py waiting     says for every slot that threads wait and work is unfinished, and rings the doorbell
  hostile_compute.py stopped     SIGSTOP for the programs, with kernels in flight
  hostile_compute.py traced      stops each of their threads by ptrace, and leaves them there
  hostile_compute.py working     nothing of the sort; for whoever does something to it from outside
"""
import ctypes
import os
import random
import signal
import struct
import subprocess
import sys
import time

USAGE = "/run/sluice/container/usage"
HEADER_BYTES = 4096
ACCOUNT_BYTES = 256
DOORBELL = HEADER_BYTES + 64
SLOTS, SLOT_BYTES = 256, 64
PTRACE_ATTACH = 16
# activity (8 threads wait, 8 streams dirty), blocked by the turn, an hour outstanding, units, 1 s the longest, nothing
# settled, drained never, overdue long ago, no intervals, turn 0, attached.
FALSE_SLOT = struct.pack("<IIQIIQQQQII", 8 << 16 | 8, 2, 3600 * 10**9, 1000, 10**6, 0, 2**63, 1, 0, 0, 1)


def tamper(contents):
    page = os.open(USAGE, os.O_RDWR)
    ring = 0
    while True:
        for offset, data in contents():
            os.pwrite(page, data, offset)
        ring += 1
        os.pwrite(page, struct.pack("<I", ring & 0xFFFFFFFF), DOORBELL)
        time.sleep(0.002)


def trace(workers):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    for worker in workers:
        for thread in os.listdir(f"/proc/{worker.pid}/task"):
            if libc.ptrace(PTRACE_ATTACH, int(thread), 0, 0):
                sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")


def main(how):
    workers = [subprocess.Popen(["long_kernels", "--kernel-ms", "5", "--depth", "4", "--seconds", "600"],
                                stdout=subprocess.DEVNULL) for _ in range(2)]
    time.sleep(1.5)
    if any(worker.poll() is not None for worker in workers):
        sys.exit("a program ended at once")
    print("attacking", *(worker.pid for worker in workers), flush=True)
    noise = random.Random(7)
    writes = {
        "account": lambda: [(HEADER_BYTES, bytes(ACCOUNT_BYTES))],
        "noise": lambda: [(HEADER_BYTES, noise.randbytes(ACCOUNT_BYTES + SLOTS * SLOT_BYTES))],
        "waiting": lambda: [(HEADER_BYTES + 20, struct.pack("<I", SLOTS)),
                            (HEADER_BYTES + ACCOUNT_BYTES, FALSE_SLOT * SLOTS)],
    }
    if how in writes:
        tamper(writes[how])
    elif how == "stopped":
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
    elif how == "traced":
        trace(workers)
    elif how != "working":
        sys.exit(__doc__)
    time.sleep(600)


main(*sys.argv[1:])
