"""cuda-core: the layer above, with pools, launches by configuration, libraries and events."""

import time

import numpy
from cuda.core import Device, EventOptions, LaunchConfig, ObjectCode, launch
from client import PRESSURE, PTX_TEMPLATE, Client

MIB = 1 << 20


def pressure(client, device, stream):
    """Fills memory from the package's pool to its own error and gives it back; what main() does next needs some of it."""
    pieces, error = client.fill(lambda: device.memory_resource.allocate(32 * MIB, stream=stream), ["out_of_memory"])
    for piece in pieces:
        piece.close(stream)
    stream.sync()
    client.saw(filled_bytes=len(pieces) * 32 * MIB, error=error)


def main():
    with Client("cuda-core") as client:
        device = Device(0)
        device.set_current()
        stream = device.create_stream()
        client.check(str(device.uuid).count("-") == 4, f"UUID {device.uuid}")
        if PRESSURE:
            pressure(client, device, stream)
        held = device.memory_resource.allocate(48 * MIB, stream=stream)
        code = ObjectCode.from_ptx(PTX_TEMPLATE.encode())
        work, fill = code.get_kernel("work"), code.get_kernel("sluice_fill_u32")
        config = LaunchConfig(grid=80, block=256)
        launch(stream, config, work, held.handle, numpy.uint32(16))
        stream.sync()
        options = EventOptions(timing_enabled=True)
        launches = 100
        started = time.monotonic()
        begin = stream.record(options=options)
        for _ in range(launches):
            launch(stream, config, work, held.handle, numpy.uint32(16))
        end = stream.record(options=options)
        end.sync()
        wall_ms = (time.monotonic() - started) * 1000
        elapsed_ms = end - begin
        client.check(launches * 0.18 <= elapsed_ms <= wall_ms + 5, f"{launches} kernels of 0.2 ms took {elapsed_ms} ms")
        launch(stream, LaunchConfig(grid=4, block=256), fill, held.handle, numpy.uint32(4242), numpy.uint64(1024))
        other = device.memory_resource.allocate(4 * MIB, stream=stream)
        other.copy_from(held, stream=stream) if other.size == held.size else None
        stream.sync()
        try:
            device.memory_resource.allocate(1 << 44, stream=stream)
            client.check(False, "16 TiB were allocated")
        except Exception as error:  # the package's own error class has moved between versions
            client.check("OUT_OF_MEMORY" in str(error), f"16 TiB gave: {error}")
        other.close(stream)
        stream.sync()
        client.saw(busy_ms=(1 + launches) * 0.2, elapsed_ms=elapsed_ms, held_bytes=48 * MIB, card=device.name)


main()
