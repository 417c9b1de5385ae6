#!/usr/bin/env python3
"""Others who talk to a node's kubelet, as other people's software does; run on the node.

    neighbour.py PROTO_FOLDER plugin RESOURCE COUNT     a device plugin of its own for RESOURCE
    neighbour.py PROTO_FOLDER poller PER_SECOND         asks PodResources for everything, again and again
    neighbour.py PROTO_FOLDER list                      asks it once: a line of JSON, [[namespace, pod, container, resource, [ids]], ...]

PROTO_FOLDER: where protoc has put the Python modules of proto/kubelet. The first two print a line when it is under way.
"""

import json
import os
import queue
import sys
import time
from concurrent import futures

import grpc

sys.path.insert(0, sys.argv[1])
from kubelet import deviceplugin_v1beta1_pb2 as plugin  # noqa: E402
from kubelet import podresources_v1_pb2 as records  # noqa: E402

PLUGINS = "/var/lib/kubelet/device-plugins"
RECORDS = "/var/lib/kubelet/pod-resources/kubelet.sock"


def device_plugin(resource, count):
    server = grpc.server(futures.ThreadPoolExecutor(8))
    never = queue.Queue()

    def devices(_request, _context):
        yield plugin.ListAndWatchResponse(devices=[plugin.Device(id=f"other-{i}", health="Healthy") for i in range(count)])
        never.get()

    def allocate(request, _context):
        answer = plugin.AllocateResponse()
        for _ in request.container_requests:
            answer.container_responses.add(envs={"OTHER_PLUGIN": "yes"})
        return answer

    def unary(call, asked, answered):
        return grpc.unary_unary_rpc_method_handler(call, asked.FromString, answered.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {
        "GetDevicePluginOptions": unary(lambda _r, _c: plugin.DevicePluginOptions(), plugin.Empty, plugin.DevicePluginOptions),
        "Allocate": unary(allocate, plugin.AllocateRequest, plugin.AllocateResponse),
        "PreStartContainer": unary(lambda _r, _c: plugin.PreStartContainerResponse(), plugin.PreStartContainerRequest,
                                   plugin.PreStartContainerResponse),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(devices, plugin.Empty.FromString,
                                                             plugin.ListAndWatchResponse.SerializeToString)}),))
    name = f"other-{os.getpid()}.sock"
    server.add_insecure_port(f"unix://{PLUGINS}/{name}")
    server.start()
    register = grpc.insecure_channel(f"unix://{PLUGINS}/kubelet.sock").unary_unary(
        "/v1beta1.Registration/Register", plugin.RegisterRequest.SerializeToString, plugin.Empty.FromString)
    register(plugin.RegisterRequest(version="v1beta1", endpoint=name, resource_name=resource), timeout=10)
    print("registered", flush=True)
    never.get()


def lister():
    return grpc.insecure_channel(f"unix://{RECORDS}").unary_unary(
        "/v1.PodResourcesLister/List", records.ListPodResourcesRequest.SerializeToString, records.ListPodResourcesResponse.FromString)


def whole_record():
    return [[pod.namespace, pod.name, container.name, devices.resource_name, sorted(devices.device_ids)]
            for pod in lister()(records.ListPodResourcesRequest(), timeout=10).pod_resources
            for container in pod.containers for devices in container.devices]


def poller(per_second):
    ask = lister()
    answers = 0
    while True:
        try:
            ask(records.ListPodResourcesRequest(), timeout=5)
            answers += 1
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        if answers % 50 == 1:
            print(f"answers {answers}", flush=True)
        time.sleep(1 / per_second)


if sys.argv[2] == "plugin":
    device_plugin(sys.argv[3], int(sys.argv[4]))
elif sys.argv[2] == "list":
    print(json.dumps(whole_record()))
else:
    poller(float(sys.argv[3]))
