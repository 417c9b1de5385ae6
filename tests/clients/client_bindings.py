"""cuda-bindings: the driver API, name by name, as NVIDIA's own Python package binds it."""

import ctypes
import time

from cuda.bindings import driver
from client import PRESSURE, PTX_TEMPLATE, Client

MIB = 1 << 20


def ok(result, *what):
    """The values of a call; raises when its code is not CUDA_SUCCESS."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise AssertionError(f"{' '.join(what) or 'a call'} returned {result[0]}")
    return result[1] if len(result) == 2 else result[1:]


def memory(client):
    """Copies both ways, memset, memory info, out of memory."""
    free, total = ok(driver.cuMemGetInfo(), "cuMemGetInfo")
    client.check(0 < free <= total, f"free {free} of {total}")

    def cost():
        free_before, _ = ok(driver.cuMemGetInfo())
        made = ok(driver.cuMemAlloc(64 * MIB), "cuMemAlloc")
        free_after, _ = ok(driver.cuMemGetInfo())
        if free_before - free_after != 64 * MIB:
            ok(driver.cuMemFree(made))
            client.check(False, f"64 MiB cost {free_before - free_after} bytes")
        return made
    pointer = client.compare(cost)
    data = bytes(range(256)) * 4096
    ok(driver.cuMemcpyHtoD(pointer, data, len(data)))
    back = bytearray(len(data))
    ok(driver.cuMemcpyDtoH(back, pointer, len(data)))
    client.check(bytes(back) == data, "what came back is not what was sent")
    ok(driver.cuMemsetD8(pointer, 0x5a, MIB))
    ok(driver.cuMemcpyDtoH(back, pointer, len(back)))
    client.check(bytes(back) == b"\x5a" * len(back), "memset left something else")
    second = ok(driver.cuMemAlloc(2 * MIB))
    ok(driver.cuMemsetD32(second, 0x01020304, 1024))
    ok(driver.cuMemcpyDtoD(pointer, second, 4096))
    word = bytearray(4)
    ok(driver.cuMemcpyDtoH(word, int(pointer) + 4092, 4))
    client.check(bytes(word) == b"\x04\x03\x02\x01", "device copy lost a word")
    code = driver.cuMemAlloc(total + MIB)[0]
    client.check(int(code) == 2, f"more than the card has gives code {int(code)}, expected 2")
    ok(driver.cuMemFree(second))
    client.saw(total_bytes=total, held_bytes=64 * MIB)
    return pointer


def shapes(client, pointer):
    """Pitched memory, 2D copies, an array, managed memory, a pool, virtual memory."""
    pitched, pitch = ok(driver.cuMemAllocPitch(1000, 16, 4), "cuMemAllocPitch")
    client.check(pitch >= 1000 and pitch % 256 == 0, f"pitch {pitch}")
    rows = b"".join(bytes([row]) * 1000 for row in range(16))
    host = ctypes.create_string_buffer(rows, len(rows))
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.srcHost = ctypes.addressof(host)
    copy.srcPitch = copy.WidthInBytes = 1000
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.dstDevice, copy.dstPitch, copy.Height = pitched, pitch, 16
    ok(driver.cuMemcpy2D(copy), "cuMemcpy2D")
    row = bytearray(1000)
    ok(driver.cuMemcpyDtoH(row, int(pitched) + 7 * pitch, 1000))
    client.check(bytes(row) == b"\x07" * 1000, "row 7 of a pitched copy is wrong")
    ok(driver.cuMemFree(pitched))

    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 256, 64, 1
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    array = ok(driver.cuArrayCreate(shape), "cuArrayCreate")
    ok(driver.cuMemcpyHtoA(array, 0, b"\x21" * 256, 256), "cuMemcpyHtoA")
    line = bytearray(256)
    ok(driver.cuMemcpyAtoH(line, array, 0, 256), "cuMemcpyAtoH")
    client.check(bytes(line) == b"\x21" * 256, "an array gave back something else")
    ok(driver.cuArrayDestroy(array))

    managed = ok(driver.cuMemAllocManaged(4 * MIB, 1), "cuMemAllocManaged")
    ok(driver.cuMemsetD8(managed, 7, 4 * MIB))
    ok(driver.cuCtxSynchronize())
    client.check(ctypes.string_at(int(managed) + 4 * MIB - 1, 1) == b"\x07", "the host does not see managed memory")
    ok(driver.cuMemFree(managed))

    pool_pointer = ok(driver.cuMemAllocAsync(8 * MIB, 0), "cuMemAllocAsync")
    ok(driver.cuMemcpyDtoD(pool_pointer, pointer, 4096))
    ok(driver.cuMemFreeAsync(pool_pointer, 0), "cuMemFreeAsync")
    ok(driver.cuCtxSynchronize())
    client.compare(lambda: virtual_memory(client))


def virtual_memory(client):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    step = ok(driver.cuMemGetAllocationGranularity(
        properties, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(0)), 0))  # what it still caches would come back in between
    free_before, _ = ok(driver.cuMemGetInfo())
    handle = ok(driver.cuMemCreate(4 * step, properties, 0), "cuMemCreate")
    address = ok(driver.cuMemAddressReserve(4 * step, 0, 0, 0), "cuMemAddressReserve")
    ok(driver.cuMemMap(address, 4 * step, 0, handle, 0), "cuMemMap")
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, 4 * step, [access], 1), "cuMemSetAccess")
    ok(driver.cuMemRelease(handle))
    free_released, _ = ok(driver.cuMemGetInfo())
    client.check(free_before - free_released == 4 * step,
                 f"releasing a mapped handle freed its memory: {free_before} bytes were free, then {free_released}")
    ok(driver.cuMemsetD8(address, 9, 4 * step))
    ok(driver.cuMemUnmap(address, 4 * step), "cuMemUnmap")
    ok(driver.cuMemAddressFree(address, 4 * step))
    free_after, _ = ok(driver.cuMemGetInfo())
    client.check(free_after == free_before, f"unmapping did not free the memory: {free_before}, then {free_after}")


def work(client, pointer):
    """A module, launches between events, streams, a graph."""
    module = ok(driver.cuModuleLoadData(PTX_TEMPLATE.encode()), "cuModuleLoadData")
    function = ok(driver.cuModuleGetFunction(module, b"work"), "cuModuleGetFunction")
    missing = driver.cuModuleGetFunction(module, b"nothing")[0]
    client.check(int(missing) == 500, f"a missing function gives {int(missing)}, expected 500")
    stream = ok(driver.cuStreamCreate(1))
    begin, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    arguments = ((int(pointer), 16), (ctypes.c_void_p, ctypes.c_uint32))
    ok(driver.cuLaunchKernel(function, 80, 1, 1, 256, 1, 1, 0, stream, arguments, 0), "cuLaunchKernel")
    ok(driver.cuStreamSynchronize(stream))
    launches = 200
    started = time.monotonic()
    ok(driver.cuEventRecord(begin, stream))
    for _ in range(launches):
        ok(driver.cuLaunchKernel(function, 80, 1, 1, 256, 1, 1, 0, stream, arguments, 0), "cuLaunchKernel")
    ok(driver.cuEventRecord(end, stream))
    ok(driver.cuEventSynchronize(end))
    wall_ms = (time.monotonic() - started) * 1000
    elapsed_ms = ok(driver.cuEventElapsedTime(begin, end))
    client.check(launches * 0.18 <= elapsed_ms <= wall_ms + 5, f"{launches} kernels of 0.2 ms took {elapsed_ms} ms")
    fill = ok(driver.cuModuleGetFunction(module, b"sluice_fill_u32"))
    fill_arguments = ((int(pointer), 77, 1024), (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    ok(driver.cuLaunchKernel(fill, 4, 1, 1, 256, 1, 1, 0, stream, fill_arguments, 0))
    for _ in range(10):
        ok(driver.cuLaunchKernel(function, 80, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
    graph = ok(driver.cuStreamEndCapture(stream), "cuStreamEndCapture")
    executable = ok(driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
    for _ in range(5):
        ok(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch")
    ok(driver.cuStreamSynchronize(stream))
    word = bytearray(4)
    ok(driver.cuMemcpyDtoH(word, int(pointer) + 4 * 1023, 4))
    client.check(int.from_bytes(word, "little") == 77, "the graph's kernel did not write")
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuStreamDestroy(stream))
    client.saw(busy_ms=(1 + launches + 50) * 0.2, elapsed_ms=elapsed_ms)


def pressure(client):
    """Fills memory by plain calls and from a pool to the driver's refusal, frees it, and finds it all there again."""
    def fill(take, give):
        free_before, _ = ok(driver.cuMemGetInfo())
        pieces, error = client.fill(take, ["error_out_of_memory"])
        for pointer in pieces:
            ok(give(pointer))
        ok(driver.cuCtxSynchronize())
        ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(0)), 0))
        free_after, _ = ok(driver.cuMemGetInfo())
        client.check(free_after == free_before, f"{free_before} bytes were free, {free_after} are afterwards")
        client.check(len(pieces) * 32 * MIB > free_before - 64 * MIB, f"only {len(pieces)} pieces of 32 MiB were given")
        client.saw(filled_bytes=len(pieces) * 32 * MIB, error=error)

    client.compare(lambda: fill(lambda: ok(driver.cuMemAlloc(32 * MIB), "cuMemAlloc"), driver.cuMemFree))
    client.compare(lambda: fill(lambda: ok(driver.cuMemAllocAsync(32 * MIB, 0), "cuMemAllocAsync"),
                                lambda pointer: driver.cuMemFreeAsync(pointer, 0)))


def main():
    with Client("cuda-bindings") as client:
        ok(driver.cuInit(0), "cuInit")
        client.check(ok(driver.cuDeviceGetCount()) >= 1, "no card")
        device = ok(driver.cuDeviceGet(0))
        name = ok(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode()
        context = ok(driver.cuDevicePrimaryCtxRetain(device))
        ok(driver.cuCtxSetCurrent(context))
        if PRESSURE:
            pressure(client)
        pointer = memory(client)
        shapes(client, pointer)
        work(client, pointer)
        free, total = ok(driver.cuMemGetInfo())
        client.saw(card=name, used_bytes=total - free, driver_version=ok(driver.cuDriverGetVersion()))


main()
