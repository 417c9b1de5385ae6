"""Dr.Jit: compiles arrays to PTX of its own and launches them; opens the driver by path."""

import gc
import glob
import os

for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") + ["/usr/lib/x86_64-linux-gnu"]:
    found = sorted(glob.glob(os.path.join(folder, "libcuda.so.1")))
    if found:
        os.environ.setdefault("DRJIT_LIBCUDA_PATH", found[0])
        break

import drjit  # noqa: E402
import drjit.cuda as cuda  # noqa: E402
from client import PRESSURE, Client  # noqa: E402


def pressure(client):
    """Fills memory with arrays to the package's error, drops them, and computes."""
    def take():
        array = drjit.arange(cuda.Float, 8 << 20)  # zeros would be kept as one number
        drjit.eval(array)
        drjit.sync_thread()
        return array

    for _ in range(2):
        pieces, error = client.fill(take, ["out of memory", "out_of_memory"])
        client.saw(filled_bytes=len(pieces) * 4 * (8 << 20), error=error)
        del pieces
        gc.collect()
        drjit.flush_malloc_cache()
        data = cuda.Float([float(i) for i in range(100)])
        drjit.eval(data)
        client.check(list(data) == [float(i) for i in range(100)], "after the error an array came back changed")


def main():
    with Client("drjit") as client:
        client.check(drjit.has_backend(drjit.JitBackend.CUDA), "Dr.Jit finds no card")
        data = cuda.Float([1.0, 2.0, 3.0, 4.0])
        drjit.eval(data)
        client.check(list(data) == [1.0, 2.0, 3.0, 4.0], "an array came back changed")
        if PRESSURE:
            pressure(client)
        big = drjit.zeros(cuda.Float, 8 << 20)
        drjit.eval(big)
        drjit.sync_thread()
        client.check(big[12345] == 0.0, "zeros are not zero")
        result = drjit.sin(drjit.arange(cuda.Float, 1 << 20)) + 1.0
        drjit.eval(result)
        drjit.sync_thread()
        client.saw(held_bytes=4 * (8 << 20))


main()
