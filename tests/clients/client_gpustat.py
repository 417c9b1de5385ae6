"""gpustat: one query, as its line of text shows it."""

from client import Client
from gpustat import GPUStatCollection


def main():
    with Client("gpustat") as client:
        collection = GPUStatCollection.new_query()
        client.check(len(collection.gpus) >= 1, "gpustat finds no card")
        gpu = collection.gpus[0]
        client.saw(card=gpu.name, uuid=gpu.uuid, total_mib=gpu.memory_total, used_mib=gpu.memory_used,
                   utilisation=gpu.utilization, temperature=gpu.temperature, fan=gpu.fan_speed,
                   processes=[[p["pid"], p["gpu_memory_usage"]] for p in gpu.processes or []], text=str(gpu))


main()
