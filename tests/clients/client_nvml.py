"""nvidia-ml-py: everything a monitoring program asks, in all versions of the structures."""

import pynvml
from client import Client


def optional(call, *arguments):
    """The value, or None where the card says that it has no such thing."""
    try:
        return call(*arguments)
    except pynvml.NVMLError_NotSupported:
        return None


def main():
    with Client("nvidia-ml-py") as client:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        client.check(count >= 1, "no card")
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        client.check(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 0, "UUID leads elsewhere")
        bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
        client.check(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == 0, "bus id leads elsewhere")
        first = pynvml.nvmlDeviceGetMemoryInfo(handle)
        second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        client.check(first.total == second.total == second.used + second.free + second.reserved, "memory does not add up")
        client.check(first.total == first.used + first.free, "memory does not add up in the first form")
        use = pynvml.nvmlDeviceGetUtilizationRates(handle)
        client.check(0 <= use.gpu <= 100, f"utilisation {use.gpu}")
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        client.saw(
            count=count, uuid=uuid, card=pynvml.nvmlDeviceGetName(handle), total_bytes=second.total,
            used_bytes=second.used, reserved_bytes=second.reserved, utilisation=use.gpu,
            processes=[[p.pid, p.usedGpuMemory] for p in processes],
            driver=pynvml.nvmlSystemGetDriverVersion(), cuda=pynvml.nvmlSystemGetCudaDriverVersion(),
            temperature=pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            power_mw=pynvml.nvmlDeviceGetPowerUsage(handle), fan=optional(pynvml.nvmlDeviceGetFanSpeed, handle),
            sm_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            ecc=optional(pynvml.nvmlDeviceGetEccMode, handle), mig=optional(pynvml.nvmlDeviceGetMigMode, handle))
        for call in (pynvml.nvmlDeviceGetSerial, pynvml.nvmlDeviceGetBrand, pynvml.nvmlDeviceGetMinorNumber,
                     pynvml.nvmlDeviceGetBAR1MemoryInfo, pynvml.nvmlDeviceGetPerformanceState,
                     pynvml.nvmlDeviceGetPersistenceMode, pynvml.nvmlDeviceGetComputeMode,
                     pynvml.nvmlDeviceGetCudaComputeCapability, pynvml.nvmlDeviceGetEnforcedPowerLimit):
            client.check(call(handle) is not None, f"{call.__name__} gave nothing")
        for bad, expected in ((count + 7, pynvml.NVML_ERROR_INVALID_ARGUMENT),):
            try:
                pynvml.nvmlDeviceGetHandleByIndex(bad)
                client.check(False, f"card {bad} was found")
            except pynvml.NVMLError as error:
                client.check(error.value == expected, f"card {bad} gave {error.value}")
        pynvml.nvmlShutdown()


main()
