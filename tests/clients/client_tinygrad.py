"""tinygrad with its own PTX back end: it opens the driver by path, allocates, copies, launches, and replays a graph."""

import os

os.environ.setdefault("DEV", "CUDA:PTX")
os.environ.setdefault("CACHEDB", os.path.join(os.environ.get("TMPDIR", "/tmp"), f"tinygrad-{os.getpid()}.db"))

from client import Client  # noqa: E402
from tinygrad import Device, Tensor, TinyJit  # noqa: E402


def main():
    with Client("tinygrad") as client:
        client.check(Device.DEFAULT.startswith("CUDA"), f"the default device is {Device.DEFAULT}")
        data = list(range(1024))
        tensor = Tensor(data, dtype="int32").realize()
        client.check(tensor.tolist() == data, "a tensor came back changed")
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
