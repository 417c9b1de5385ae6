#!/usr/bin/env python3
"""What the agent costs on a node of eight cards of 141 GiB: latency of Allocate and PreStartContainer over a gRPC client
in Python (its own share of a call is measured too, with GetDevicePluginOptions), memory, processor time when nothing
happens. Not in ctest: it is for quiet machines. With the release build: SLUICE_BUILD=build/release tests/node/measure.py
"""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_node  # noqa: E402

fake_node.prepare()
from fake_node import CORE, MEMORY, Node  # noqa: E402

PODS = 100


def middle(values):
    return sorted(values)[len(values) // 2] * 1e3


def late(values):
    return sorted(values)[int(len(values) * 0.99)] * 1e3


def timed(into, call):
    began = time.monotonic()
    answer = call()
    into.append(time.monotonic() - began)
    return answer


def processes(node):
    return [node.agent.pid, node.worker()]


def memory(node):
    """Resident MiB that are the process's own, and threads, of the front and the worker."""
    out = []
    for pid in processes(node):
        with open(f"/proc/{pid}/smaps_rollup") as file:
            own = sum(int(line.split()[1]) for line in file if line.startswith(("Private_Clean", "Private_Dirty")))
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        out.append(f"{int(fields['VmRSS'].split()[0]) / 1024:.0f} MiB ({own / 1024:.0f} of its own), {int(fields['Threads'])} threads")
    return "front " + ", worker ".join(out)


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(node, seconds=10):
    before = [processor_seconds(pid) for pid in processes(node)]
    time.sleep(seconds)
    used = [100 * (processor_seconds(pid) - b) / seconds for pid, b in zip(processes(node), before)]
    return f"{used[0]:.1f} + {used[1]:.1f} % of a core idle"


def main():
    with Node(cards=8, profile="H200").start_agent() as node:
        node.wait_offered(8 * 140, 800, seconds=60)
        kubelet = node.kubelet
        print(f"empty node: {memory(node)}; {idle(node)}")
        times = {"call": [], "allocate": [], "pre_start": []}
        plain = kubelet.call

        def call(resource, method, request, answer_type):
            key = {"Allocate": "allocate", "PreStartContainer": "pre_start"}[method]
            return timed(times[key], lambda: plain(resource, method, request, answer_type))
        kubelet.call = call
        pods = []
        for i in range(PODS):
            pod = node.make_pod({"main": (10, 5)}, card=i % 8)
            kubelet.admit(pod)
            kubelet.start_container(pod, "main")
            pods.append(pod)
            timed(times["call"], lambda: kubelet.plugins[CORE].unary_unary(
                "/v1beta1.DevicePlugin/GetDevicePluginOptions", kubelet.pb.Empty.SerializeToString,
                kubelet.pb.DevicePluginOptions.FromString)(kubelet.pb.Empty(), timeout=5))
        for key, values in times.items():
            print(f"{key}: {len(values)} calls, median {middle(values):.2f} ms, 99 % {late(values):.2f} ms, "
                  f"longest {max(values) * 1e3:.2f} ms")
        print(f"{PODS} pods: {memory(node)}; {idle(node)}; {kubelet.gets} questions to the kubelet's record")
        if len(sys.argv) > 1:  # a moment for a profiler
            print(f"worker {node.worker()}, {sys.argv[1]} s", flush=True)
            time.sleep(float(sys.argv[1]))
        again = []
        for pod in pods:
            timed(again, lambda: kubelet.start_container(pod, "main"))
        print(f"restart of a container (two PreStartContainer calls): median {middle(again):.2f} ms")
        assert node.kubelet.allocatable(MEMORY) == 8 * 140


main()
