#!/usr/bin/env python3
"""What a tenant may try against the node, from inside a container that `sluice run` made. Prints one line, flushed, when it is
done, then holds on until it is killed.

  hostile.py zeros|noise     overwrites the usage page
  hostile.py truncate        cuts it off, then makes it huge
  hostile.py fill            writes as much as its file system takes; prints the MiB
  hostile.py locks           locks every byte of it
  hostile.py files           tries to write to its grant, and to remove and replace its files; prints what succeeded
  hostile.py stop            takes 1 GiB of the card in a child, stops it by ptrace and by SIGSTOP
  hostile.py own-copy        loads a copy of the driver that stands where our library took its place; prints its result
  hostile.py greedy HOW N    N processes take all the memory they can get, each tampering before every allocation: HOW is
                             zeros (the slots), close (that, and opening and closing the usage file), ended (that, in
                             processes that end after a moment), or cut (a further process cuts and grows the file without
                             end). Prints the MiB that they were given
"""
import ctypes
import fcntl
import glob
import os
import random
import shutil
import signal
import sys
import time

ROOT = "/run/sluice/container"
USAGE = ROOT + "/usage"


def overwrite(contents):
    size = os.stat(USAGE).st_size
    with open(USAGE, "r+b", buffering=0) as page:
        page.write(contents(size))


def truncate():
    os.truncate(USAGE, 0)
    time.sleep(0.5)
    try:
        os.truncate(USAGE, 1 << 40)
    except OSError:
        pass


def fill():
    written = 0
    block = b"\xff" * (1 << 20)
    with open(USAGE, "r+b", buffering=0) as page:
        try:
            while written < 256:
                if page.write(block) < len(block):
                    break
                written += 1
        except OSError:
            pass
    return written


def locks():
    page = open(USAGE, "r+b", buffering=0)
    fcntl.lockf(page, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return page


def files():
    done = []
    agents = lambda pattern: glob.glob(os.path.join(os.environ["SLUICE_RUN_DIR"], pattern))
    tries = {
        "write the grant": lambda: open(ROOT + "/grant/page", "r+b"),
        "remove the grant": lambda: os.unlink(ROOT + "/grant/page"),
        "remove the usage page": lambda: os.unlink(USAGE),
        "write the grant through the agent's folder": lambda: [open(p, "r+b") for p in agents("grants/*/grant/page")][0],
        "write the agent's records": lambda: [open(p, "r+b") for p in agents("records/*.json")][0],
        "put a link in its place": lambda: os.rename(USAGE, USAGE + ".old"),
    }
    for name, attempt in tries.items():
        try:
            attempt()
            done.append(name)
        except (OSError, IndexError):
            pass
    return ", ".join(done) or "nothing"


def stop():
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        cuda = ctypes.CDLL("libcuda.so.1")
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        codes = [cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
                 cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30))]
        libc.ptrace(0, 0, 0, 0)  # PTRACE_TRACEME: a signal stops it for its parent
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(max(codes))
    os.waitpid(child, os.WUNTRACED)
    other = os.fork()
    if other == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)


def own_copy():
    copy = "/tmp/hostile-driver.so"
    shutil.copy(ROOT + "/driver/real-cuda", copy)
    cuda = ctypes.CDLL(copy)
    os.unlink(copy)
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    codes = [cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
             cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(5 << 30))]
    return max(codes)


def zero_slots():
    with open(USAGE, "r+b", buffering=0) as page:
        page.seek(128)  # the mark and the grant's number stay
        page.write(b"\0" * (os.stat(USAGE).st_size - 128))


def take_all(how, until, given):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    if cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0):
        time.sleep(0.1)
        os._exit(0)
    ended = time.monotonic() + 0.3
    while time.monotonic() < until and not (how == "ended" and time.monotonic() > ended):
        if how != "cut":
            zero_slots()
        if how in ("close", "ended"):
            os.close(os.open(USAGE, os.O_RDONLY))
        if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0:
            os.write(given, b"x")
    if how == "ended":
        os._exit(0)
    time.sleep(120)


def cut_and_grow():
    size = os.stat(USAGE).st_size
    while True:
        os.truncate(USAGE, 4096)
        os.truncate(USAGE, size)


def greedy():
    how, count, until = sys.argv[2], int(sys.argv[3]), time.monotonic() + 6
    given, end = os.pipe()
    os.set_blocking(given, False)

    def child(body):
        pid = os.fork()
        if pid == 0:
            try:
                body()
            finally:
                os._exit(1)
        return pid

    workers = set()
    cutter = child(cut_and_grow) if how == "cut" else None
    while time.monotonic() < until:
        while len(workers) < count:
            workers.add(child(lambda: take_all(how, until, end)))
        time.sleep(0.02)
        for pid in list(workers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                workers.discard(pid)
    if cutter:
        os.kill(cutter, signal.SIGKILL)
    try:
        return 64 * len(os.read(given, 1 << 20))
    except BlockingIOError:
        return 0


def main():
    attacks = {
        "zeros": lambda: overwrite(lambda size: b"\0" * size),
        "noise": lambda: overwrite(random.Random(1).randbytes),
        "truncate": truncate, "fill": fill, "locks": locks, "files": files, "stop": stop, "own-copy": own_copy,
        "greedy": greedy,
    }
    said = attacks[sys.argv[1]]()
    print("done", said if isinstance(said, (int, str)) else "", flush=True)
    time.sleep(120)
    del said


if __name__ == "__main__":
    main()
