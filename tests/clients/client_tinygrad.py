"""tinygrad with its own PTX back end: it opens the driver by path, allocates, copies, launches, and replays a graph."""

import gc
import os

os.environ.setdefault("DEV", "CUDA:PTX")
os.environ.setdefault("CACHEDB", os.path.join(os.environ.get("TMPDIR", "/tmp"), f"tinygrad-{os.getpid()}.db"))

from client import PRESSURE, Client  # noqa: E402
from tinygrad import Device, Tensor, TinyJit  # noqa: E402


def pressure(client):
    """Fills memory with tensors to the package's error, drops them, and computes."""
    for _ in range(2):
        # Its words for it: "MemoryError: Allocation of 32.00 MB failed on CUDA".
        pieces, error = client.fill(lambda: Tensor.ones(8, 1024, 1024).contiguous().realize(), ["mb failed on cuda"])
        client.saw(filled_bytes=sum(piece.nbytes() for piece in pieces), error=error)
        del pieces
        gc.collect()
        Device[Device.DEFAULT].synchronize()
        data = list(range(2048))
        again = Tensor(data, dtype="int32").realize()
        client.check(again.tolist() == data, "after the error a tensor came back changed")


def main():
    with Client("tinygrad") as client:
        client.check(Device.DEFAULT.startswith("CUDA"), f"the default device is {Device.DEFAULT}")
        data = list(range(1024))
        tensor = Tensor(data, dtype="int32").realize()
        client.check(tensor.tolist() == data, "a tensor came back changed")
        if PRESSURE:
            pressure(client)
        big = Tensor.zeros(16, 1024, 1024).contiguous().realize()

        @TinyJit
        def step(x):
            return (x * 2 + 1).contiguous().realize()

        x = Tensor.ones(256, 256).contiguous().realize()
        for _ in range(6):
            y = step(x)
        client.check(tuple(y.shape) == (256, 256), "the step's shape changed")
        Device[Device.DEFAULT].synchronize()
        client.saw(held_bytes=big.nbytes() + tensor.nbytes())


main()
