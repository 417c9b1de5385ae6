"""numba-cuda: Python compiled to the card; kernels do nothing on a simulated one, so transfers and times are checked."""

import numpy
from client import Client
from numba import cuda


@cuda.jit
def add_one(values):
    index = cuda.grid(1)
    if index < values.size:
        values[index] += 1.0


def main():
    with Client("numba-cuda") as client:
        data = numpy.arange(1 << 20, dtype=numpy.float64)
        on_card = cuda.to_device(data)
        client.check((on_card.copy_to_host() == data).all(), "an array came back changed")
        begin, end = cuda.event(), cuda.event()
        begin.record()
        for _ in range(20):
            add_one[4096, 256](on_card)
        end.record()
        end.synchronize()
        elapsed_ms = cuda.event_elapsed_time(begin, end)
        client.check(elapsed_ms > 0, f"20 launches took {elapsed_ms} ms")
        free, total = cuda.current_context().get_memory_info()
        client.saw(elapsed_ms=elapsed_ms, held_bytes=data.nbytes, used_bytes=total - free)


main()
