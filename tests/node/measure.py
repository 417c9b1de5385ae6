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


def memory_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"])


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(node, seconds=10):
    before = processor_seconds(node.agent.pid)
    time.sleep(seconds)
    return 100 * (processor_seconds(node.agent.pid) - before) / seconds


def main():
    with Node(cards=8, profile="H200").start_agent() as node:
        node.wait_offered(8 * 140, 800, seconds=60)
        kubelet = node.kubelet
        print(f"empty node: {memory_mib(node.agent.pid)[0]:.1f} MiB, {memory_mib(node.agent.pid)[1]} threads, "
              f"{idle(node):.1f} % of a core idle")
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
        print(f"{PODS} pods: {memory_mib(node.agent.pid)[0]:.1f} MiB, {memory_mib(node.agent.pid)[1]} threads, "
              f"{idle(node):.1f} % of a core idle; {kubelet.gets} questions to the kubelet's record")
        again = []
        for pod in pods:
            timed(again, lambda: kubelet.start_container(pod, "main"))
        print(f"restart of a container (two PreStartContainer calls): median {middle(again):.2f} ms")
        assert node.kubelet.allocatable(MEMORY) == 8 * 140


main()
