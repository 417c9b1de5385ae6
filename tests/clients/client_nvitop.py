"""nvitop: devices with their processes, as its screen collects them."""

from client import Client
from nvitop import Device


def main():
    with Client("nvitop") as client:
        devices = Device.all()
        client.check(len(devices) >= 1, "nvitop finds no card")
        device = devices[0]
        snapshot = device.as_snapshot()
        client.check(snapshot.memory_used + snapshot.memory_free <= snapshot.memory_total, "memory does not add up")
        client.saw(card=str(snapshot.name), uuid=str(device.uuid()), total_bytes=int(snapshot.memory_total),
                   used_bytes=int(snapshot.memory_used), utilisation=int(snapshot.gpu_utilization),
                   temperature=int(snapshot.temperature), power_mw=int(snapshot.power_usage),
                   fan=str(snapshot.fan_speed),
                   processes=[[pid, int(process.gpu_memory())] for pid, process in device.processes().items()])


main()
