"""A node without a kubelet: an API server and a kubelet made of the few things that the agent talks to, speaking the
real wire formats (HTTP and JSON; gRPC with the messages of proto/kubelet), so that every order of calls can be played,
also those that a real kubelet makes only on a bad day. The cards are simulated ones.

Run as root (the agent mounts); everything happens in a mount namespace of the test's own and below one folder.
"""
import base64
import contextlib
import glob
import http.server
import json
import os
import random
import re
import shutil
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request
from concurrent import futures

SKIP = 77
SOURCE = os.environ.get("SLUICE_SOURCE", os.path.abspath(os.path.join(os.path.dirname(__file__), "../..")))
BUILD = os.environ.get("SLUICE_BUILD", os.path.join(SOURCE, "build/dev"))
MEMORY, CORE, WHOLE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIP)


def prepare():
    """Enters a mount namespace of its own, with a Python that has grpc. Called first by every test."""
    try:
        import grpc  # noqa: F401
    except ImportError:
        if sys.executable == "/usr/bin/python3" or not os.path.exists("/usr/bin/python3"):
            skip("python3-grpcio is not installed (script/install-deps)")
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    if os.geteuid() != 0:
        skip("the agent of a Kubernetes node mounts, which needs root")
    if os.environ.get("SLUICE_FAKE_NODE") != "1":
        os.environ["SLUICE_FAKE_NODE"] = "1"
        if subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
            skip("no mount namespace can be made here")
        os.execvp("unshare", ["unshare", "-m", "--propagation", "private", sys.executable, *sys.argv])
    made = tempfile.mkdtemp(prefix="sluice-proto-")
    protos = [f"kubelet/{name}.proto" for name in ("deviceplugin_v1beta1", "podresources_v1")]
    subprocess.run(["protoc", "-I", f"{SOURCE}/proto", f"--python_out={made}", *protos], check=True)
    sys.path.insert(0, made)
    import atexit
    atexit.register(shutil.rmtree, made, ignore_errors=True)


def eventually(what, check, seconds=15.0):
    """The first true answer of check(); fails with `what` when there is none in time."""
    end = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Api:
    """Pods and nodes with list, watch and patch; events are kept. Plain HTTP."""

    def __init__(self):
        self.lock = threading.Condition()
        self.version = 1
        self.objects = {"pods": {}, "nodes": {}}  # and resourceslices, deviceclasses where a scene has DRA
        self.log = []  # (version, kind, type, object)
        self.events = []
        self.patches = []
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, code, body):
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                url = urllib.parse.urlparse(self.path)
                query = urllib.parse.parse_qs(url.query)
                parts = url.path.strip("/").split("/")
                if parts[0] == "apis":
                    found = api.objects.get(parts[3]) if parts[2] == "v1" else None
                    return self.answer(404, {"message": "no such resource"}) if found is None else \
                        self.answer(200, {"items": list(found.values())})
                kind = parts[2]
                if len(parts) > 3:
                    found = api.objects[kind].get(parts[3])
                    return self.answer(200 if found else 404, found or {"message": "not found"})
                if "watch" not in query:
                    with api.lock:
                        return self.answer(200, {"metadata": {"resourceVersion": str(api.version)},
                                                 "items": list(api.objects[kind].values())})
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                seen = int(query["resourceVersion"][0])
                try:
                    while True:
                        with api.lock:
                            api.lock.wait_for(lambda: api.version > seen, timeout=1)
                            news = [e for e in api.log if e[0] > seen and e[1] == kind]
                            seen = api.version
                        for _, _, kind_of_event, found in news:
                            line = json.dumps({"type": kind_of_event, "object": found}).encode() + b"\n"
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                except OSError:
                    return

            def do_PATCH(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                parts = urllib.parse.urlparse(self.path).path.strip("/").split("/")
                api.patches.append((parts[4] if len(parts) > 4 else "", body))
                with api.lock:
                    node = json.loads(json.dumps(api.objects["nodes"][parts[3]]))
                    merge(node, body)
                    api.put("nodes", node)
                self.answer(200, node)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.events.append(body)
                self.answer(201, body)

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, kind, found, event=None):
        with self.lock:
            key = found["metadata"]["uid"] if kind == "pods" else found["metadata"]["name"]
            event = event or ("MODIFIED" if key in self.objects[kind] else "ADDED")
            self.version += 1
            found["metadata"]["resourceVersion"] = str(self.version)
            if event == "DELETED":
                self.objects[kind].pop(key, None)
            else:
                self.objects[kind][key] = found
            self.log.append((self.version, kind, event, json.loads(json.dumps(found))))
            self.lock.notify_all()

    def node(self, name="node-a"):
        return self.objects["nodes"][name]

    def label(self, changes=None, **labels):
        """changes: by key; labels: the same with _ for dots. None takes a label away."""
        node = json.loads(json.dumps(self.node()))
        for key, value in [*(changes or {}).items(), *((key.replace("_", "."), value) for key, value in labels.items())]:
            node["metadata"].setdefault("labels", {})
            if value is None:
                node["metadata"]["labels"].pop(key, None)
            else:
                node["metadata"]["labels"][key] = value
        self.put("nodes", node)

    def condition(self, kind):
        for one in self.node()["status"].get("conditions", []):
            if one["type"] == kind:
                return one
        return None

    def event_texts(self, reason=""):
        return [e["message"] for e in self.events if not reason or e["reason"] == reason]


def merge(into, patch):
    """Strategic merge as far as nodes need it: maps by key, null removes, conditions by type."""
    for key, value in patch.items():
        if key == "conditions":
            for one in value:
                rest = [c for c in into.get(key, []) if c["type"] != one["type"]]
                into[key] = rest if one.get("$patch") == "delete" else rest + [one]
        elif value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class Kubelet:
    """Registration, lists, Allocate in random order, PreStartContainer, PodResources: as kubelets do it."""

    def __init__(self, folder, has_get=True, has_checkpoint=True):
        import grpc
        from kubelet import deviceplugin_v1beta1_pb2 as plugin_pb
        from kubelet import podresources_v1_pb2 as records_pb
        self.grpc, self.pb, self.records_pb = grpc, plugin_pb, records_pb
        self.folder, self.has_get, self.has_checkpoint = folder, has_get, has_checkpoint
        self.lists = {}    # resource -> {id: health}
        self.plugins = {}  # resource -> channel
        self.options = {}
        self.records = {}  # (namespace, pod) -> {container: {resource: [ids]}}, init containers left out
        self.answers = {}  # (uid, container, resource) -> AllocateResponse
        self.taken = {}    # (uid, container, resource) -> ids
        self.registrations = []
        self.gets = self.lists_asked = 0
        os.makedirs(f"{folder}/device-plugins", exist_ok=True)
        os.makedirs(f"{folder}/pod-resources", exist_ok=True)
        self.server = None
        self.start()

    # -- sockets
    def start(self):
        for name in os.listdir(f"{self.folder}/device-plugins"):
            if name.endswith(".sock"):
                os.unlink(f"{self.folder}/device-plugins/{name}")
        self.lists = {name: {i: "Unhealthy" for i in ids} for name, ids in self.lists.items()}
        self.plugins, self.options = {}, {}
        grpc = self.grpc
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        handler = grpc.method_handlers_generic_handler("v1beta1.Registration", {
            "Register": grpc.unary_unary_rpc_method_handler(
                self._register, self.pb.RegisterRequest.FromString, self.pb.Empty.SerializeToString)})
        self.server.add_generic_rpc_handlers((handler,))
        self.server.add_insecure_port(f"unix://{self.folder}/device-plugins/kubelet.sock")
        methods = {"List": grpc.unary_unary_rpc_method_handler(
            self._list, self.records_pb.ListPodResourcesRequest.FromString,
            self.records_pb.ListPodResourcesResponse.SerializeToString)}
        if self.has_get:
            methods["Get"] = grpc.unary_unary_rpc_method_handler(
                self._get, self.records_pb.GetPodResourcesRequest.FromString,
                self.records_pb.GetPodResourcesResponse.SerializeToString)
        self.records_server = grpc.server(futures.ThreadPoolExecutor(8))
        self.records_server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
        socket = f"{self.folder}/pod-resources/kubelet.sock"
        if os.path.exists(socket):
            os.unlink(socket)
        self.records_server.add_insecure_port(f"unix://{socket}")
        self.records_server.start()
        self.server.start()

    def stop(self):
        for channel in list(self.plugins.values()):
            channel.close()
        self.server.stop(0).wait()
        self.records_server.stop(0).wait()

    def _register(self, request, context):
        resource = request.resource_name
        channel = self.grpc.insecure_channel(f"unix://{self.folder}/device-plugins/{request.endpoint}")
        options = channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions",
                                      self.pb.Empty.SerializeToString, self.pb.DevicePluginOptions.FromString)
        self.options[resource] = options(self.pb.Empty(), timeout=5)
        self.plugins[resource] = channel
        self.registrations.append((time.monotonic(), resource, request.endpoint))
        watch = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", self.pb.Empty.SerializeToString,
                                     self.pb.ListAndWatchResponse.FromString)

        def follow():
            try:
                for message in watch(self.pb.Empty()):
                    if self.plugins.get(resource) is not channel:
                        return
                    now = {d.id: d.health for d in message.devices}
                    gone = set(self.lists.get(resource, {})) - set(now)
                    if gone and resource != WHOLE:
                        print(f"FAULT: ids of {resource} were withdrawn: {sorted(gone)[:3]}", flush=True)
                        os._exit(1)
                    self.lists[resource] = now
            except (self.grpc.RpcError, ValueError):
                pass
            if self.plugins.get(resource) is channel:
                self.lists[resource] = {i: "Unhealthy" for i in self.lists.get(resource, {})}
                self.plugins.pop(resource, None)

        threading.Thread(target=follow, daemon=True).start()
        return self.pb.Empty()

    def _pod_message(self, name_space, name):
        pod = self.records_pb.PodResources(name=name, namespace=name_space)
        for container, resources in self.records[(name_space, name)].items():
            one = pod.containers.add(name=container)
            for resource, ids in resources.items():
                one.devices.add(resource_name=resource, device_ids=ids)
        return pod

    def _get(self, request, context):
        self.gets += 1
        if (request.pod_namespace, request.pod_name) not in self.records:
            context.abort(self.grpc.StatusCode.UNKNOWN,
                          f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return self.records_pb.GetPodResourcesResponse(
            pod_resources=self._pod_message(request.pod_namespace, request.pod_name))

    def _list(self, request, context):
        self.lists_asked += 1
        return self.records_pb.ListPodResourcesResponse(pod_resources=[self._pod_message(*key) for key in self.records])

    # -- what the sync loop and the pod workers do
    def allocatable(self, resource):
        return sum(1 for health in self.lists.get(resource, {}).values() if health == "Healthy")

    def call(self, resource, method, request, answer_type):
        call = self.plugins[resource].unary_unary(f"/v1beta1.DevicePlugin/{method}", type(request).SerializeToString,
                                                  answer_type.FromString)
        return call(request, timeout=30)

    def admit(self, pod, reuse=True, twice=None):
        """Allocates for every container, init containers first; the record shows all but ordinary init containers.
        twice: ids that are handed out although they are taken, by resource (a fault of kubelets up to 1.37)."""
        uid = pod["metadata"]["uid"]
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.records[key] = {}
        reusable = {}
        for container, is_init in containers_of(pod):
            limits = container.get("resources", {}).get("limits", {})
            names = list(limits)
            random.shuffle(names)
            for resource in names:
                need = int(limits[resource])
                held = {i for (_, _, r), ids in self.taken.items() if r == resource for i in ids}
                ids = sorted(reusable.get(resource, set()))[:need] if reuse else []
                free = [i for i, health in self.lists.get(resource, {}).items()
                        if health == "Healthy" and i not in held]
                random.shuffle(free)
                if len(ids) + len(free) < need:
                    raise RuntimeError(f"UnexpectedAdmissionError: {resource}: requested {need}, "
                                       f"available {len(ids) + len(free)}")
                ids += free[:need - len(ids)]
                ids = (twice or {}).get(resource, ids)
                request = self.pb.AllocateRequest()
                request.container_requests.add(device_ids=ids)
                answer = self.call(resource, "Allocate", request, self.pb.AllocateResponse)
                self.answers[(uid, container["name"], resource)] = answer.container_responses[0]
                self.taken[(uid, container["name"], resource)] = ids
                if is_init:
                    reusable.setdefault(resource, set()).update(ids)
                else:
                    reusable.get(resource, set()).difference_update(ids)
                    self.records[key].setdefault(container["name"], {})[resource] = ids

        self.write_checkpoint()

    def write_checkpoint(self):
        """kubelet_internal_checkpoint, as kubelets write it once a container's devices are allocated."""
        if not self.has_checkpoint:
            return
        entries = [{"PodUID": uid, "ContainerName": container, "ResourceName": resource, "DeviceIDs": {"-1": ids},
                    "AllocResp": base64.b64encode(self.answers[(uid, container, resource)].SerializeToString()).decode()}
                   for (uid, container, resource), ids in self.taken.items()]
        text = json.dumps({"Data": {"PodDeviceEntries": entries or None, "RegisteredDevices": {}}, "Checksum": 0})
        path = f"{self.folder}/device-plugins/kubelet_internal_checkpoint"
        with open(f"{path}.new", "w") as file:
            file.write(text)
        os.rename(f"{path}.new", path)

    def start_container(self, pod, name):
        uid = pod["metadata"]["uid"]
        mine = [(r, ids) for (u, c, r), ids in self.taken.items() if u == uid and c == name]
        random.shuffle(mine)
        for resource, ids in mine:
            self.call(resource, "PreStartContainer", self.pb.PreStartContainerRequest(device_ids=ids),
                      self.pb.PreStartContainerResponse)

    def forget(self, pod):
        uid = pod["metadata"]["uid"]
        for table in (self.taken, self.answers):
            for key in [k for k in table if k[0] == uid]:
                del table[key]
        self.records.pop((pod["metadata"]["namespace"], pod["metadata"]["name"]), None)
        self.write_checkpoint()

    def cdi_device(self, pod, container, resource=MEMORY):
        devices = self.answers[(pod["metadata"]["uid"], container, resource)].cdi_devices
        assert len(devices) == 1, devices
        return devices[0].name


def containers_of(pod):
    for container in pod["spec"].get("initContainers", []):
        yield container, container.get("restartPolicy") != "Always"
    for container in pod["spec"]["containers"]:
        yield container, False


CARD_MIB, CARD_UNITS = 32510, 31  # of the profile that most scenes use


def share(units, percent):
    """(limit MiB, permille) of that many units and percent of one card, as Node.grant() shows them."""
    return CARD_MIB * units // CARD_UNITS, percent * 10


@contextlib.contextmanager
def serving(cards=1, **options):
    """A Node whose agent has offered all of it."""
    with Node(cards=cards, **options).start_agent() as node:
        yield node.wait_offered(CARD_UNITS * cards, 100 * cards)


class Node:
    """One node: folder, cards, API server, kubelet, agent, and the scheduler's pen."""

    def __init__(self, cards=1, profile="V100-SXM2-32GB", mode="core_mem", has_get=True, version="v1.36.3",
                 runtime="containerd://2.4.2", options=(), card_options=(), has_checkpoint=True):
        self.folder = tempfile.mkdtemp(prefix="sluice-node-")
        self.driver = f"{self.folder}/sim"
        os.makedirs(self.driver)
        for path in glob.glob(f"{BUILD}/sim/*.so.1") + [f"{BUILD}/bin/nvidia-smi", f"{BUILD}/bin/sluice-sim"]:
            shutil.copy(path, self.driver)
        open(f"{self.driver}/simulated", "w").close()
        self.card_options = ["--card", profile, "--count", str(cards), "--seed", str(os.getpid()), *card_options]
        subprocess.run([f"{BUILD}/bin/sluice-sim", "create", f"{self.driver}/state", *self.card_options], check=True,
                       stdout=subprocess.DEVNULL)
        self.key = f"{self.folder}/key.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", self.key], check=True,
                       stderr=subprocess.DEVNULL)
        subprocess.run(["openssl", "pkey", "-in", self.key, "-pubout", "-out", f"{self.folder}/public.pem"], check=True)
        self.api = Api()
        labels = {} if mode is None else {"ack.node.gpu.schedule": mode}
        self.api.put("nodes", {"metadata": {"name": "node-a", "labels": labels, "annotations": {}},
                               "status": {"nodeInfo": {"kubeletVersion": version, "containerRuntimeVersion": runtime},
                                          "capacity": {}, "allocatable": {}, "conditions": []}})
        with open(f"{self.folder}/kubeconfig", "w") as file:
            json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "t",
                       "clusters": [{"name": "t", "cluster": {"server": self.api.url}}],
                       "users": [{"name": "t", "user": {"token": "t"}}],
                       "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}]}, file)
        self.kubelet = Kubelet(f"{self.folder}/kubelet", has_get, has_checkpoint)
        self.options = list(options)
        self.agent = None
        self.log = f"{self.folder}/agent.log"
        self.pods = 0

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            with open(self.log) as file:
                print("--- agent's log\n" + "".join(file.readlines()[-60:]), flush=True)
        self.stop_agent()
        self.kubelet.stop()
        with open("/proc/self/mounts") as file:
            mounts = [line.split()[1] for line in file if self.folder in line]
        for mount in sorted(mounts, reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def arguments(self):
        folder = self.folder
        return [f"{BUILD}/bin/sluice-agent", "--kubernetes", "--node-name", "node-a", "--kubeconfig",
                f"{folder}/kubeconfig", "--allocation-key", f"{folder}/public.pem", "--driver-root", self.driver,
                "--library-dir", f"{BUILD}/guest", "--state-dir", f"{folder}/state", "--run-dir", f"{folder}/run",
                "--kubelet-dir", f"{folder}/kubelet", "--cdi-dir", f"{folder}/cdi", "--card-lock-dir", folder,
                "--metrics-listen", "127.0.0.1:0", *self.options]

    def start_agent(self):
        environment = {k: v for k, v in os.environ.items() if k not in ("SLUICE_SIM_DIR", "LD_LIBRARY_PATH")}
        self.agent = subprocess.Popen(self.arguments(), env=environment, stderr=open(self.log, "a"))
        return self

    def log_lines(self, *words):
        with open(self.log) as file:
            return [line for line in file if all(word in line for word in words)]

    def kill_agent(self, signal=9):
        """Both processes of it: the worker ends with the front."""
        worker = self.worker()
        self.agent.send_signal(signal)
        self.agent.wait(30)
        if worker:
            eventually("the worker has ended", lambda: not os.path.exists(f"/proc/{worker}"))

    def worker(self):
        """The pid of the process that does the work, None while there is none."""
        try:
            with open(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children") as file:
                return int((file.read().split() or [0])[0]) or None
        except OSError:
            return None

    def kill_worker(self, signal=9):
        """The worker alone; returns at once."""
        worker = eventually("a worker", self.worker)
        os.kill(worker, signal)
        return worker

    def reboot(self):
        """Nothing runs, file systems in memory are empty, then the agent starts again."""
        self.stop_agent()
        with open("/proc/self/mounts") as file:
            mounts = [line.split()[1] for line in file if f"{self.folder}/run" in line]
        for mount in sorted(mounts, reverse=True):
            subprocess.run(["umount", "-l", mount], check=True)
        shutil.rmtree(f"{self.folder}/cdi")
        assert os.listdir(f"{self.folder}/run") == []
        return self.start_agent()

    def stop_agent(self):
        if self.agent is not None and self.agent.poll() is None:
            self.kill_agent()

    def wait_offered(self, memory=31, core=100, seconds=15.0):
        def offered():
            assert self.agent.poll() is None, "the agent has ended"
            return self.kubelet.allocatable(MEMORY) == memory and self.kubelet.allocatable(CORE) == core
        eventually(f"{memory} units and {core} percent offered", offered, seconds)
        return self

    def cards(self):
        eventually("the cards on the node", lambda: "sluice.dev/cards" in self.api.node()["metadata"]["annotations"])
        annotations = self.api.node()["metadata"]["annotations"]
        return json.loads(annotations["sluice.dev/cards"])

    # -- pods
    def make_pod(self, containers=None, init=None, name=None, count=None, allocation="auto", card=0, labels=None,
                 shown=True):
        """A pod of this node with its signed allocation. containers: {name: (units, percent)}. shown: the API server has
        it; else the kubelet alone knows, as when the agent's watch is behind, until api.put("pods", pod)."""
        self.pods += 1
        name = name or f"pod-{self.pods}"
        uid = f"00000000-0000-4000-8000-{random.getrandbits(48):012x}"

        def one(container, units, percent, sidecar=False):
            limits = {}
            if units:
                limits[MEMORY] = str(units)
            if percent:
                limits[CORE] = str(percent)
            out = {"name": container, "resources": {"limits": limits}}
            if sidecar:
                out["restartPolicy"] = "Always"
            return out
        containers = containers if containers is not None else {"main": (10, 30)}
        pod = {"metadata": {"name": name, "namespace": "team", "uid": uid, "annotations": {}, "labels": labels or {},
                            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())},
               "spec": {"nodeName": "node-a",
                        "initContainers": [one(n, *s) for n, s in (init or {}).items()],
                        "containers": [one(n, *s) for n, s in containers.items()]},
               "status": {"phase": "Pending"}}
        cards = self.cards()
        chosen = [cards[i] for i in (card if isinstance(card, list) else [card])]
        if len(chosen) > 1:
            pod["metadata"]["labels"]["aliyun.com/gpu-count"] = str(len(chosen))
        if allocation == "auto":
            self.sign(pod, chosen, {**(init or {}), **containers}, set(init or {}))
        if shown:
            self.api.put("pods", pod)
        return pod

    def sign(self, pod, cards, containers, init=()):
        n = len(cards)

        def shares(units, percent):
            return [{"index": c["index"], "uuid": c["uuid"], "units": units // n, "core_milli": percent * 10 // n}
                    for c in cards]
        total = [max([sum(v[i] for k, v in containers.items() if k not in init)] +
                     [v[i] for k, v in containers.items() if k in init]) for i in (0, 1)]
        record = json.dumps({"version": 1, "cards": shares(*total),
                             "containers": {k: shares(v[0], v[1]) for k, v in containers.items() if v[0]}})
        text = f"sluice allocation 1\n{pod['metadata']['uid']}\nnode-a\n{record}"
        with tempfile.NamedTemporaryFile() as file:
            file.write(text.encode())
            file.flush()
            signature = subprocess.run(["openssl", "pkeyutl", "-sign", "-inkey", self.key, "-rawin", "-in", file.name],
                                       check=True, stdout=subprocess.PIPE).stdout
        pod["metadata"]["annotations"].update({"sluice.dev/allocation": record,
                                               "sluice.dev/signature": base64.b64encode(signature).decode()})

    def set_status(self, pod, phase=None, states=None):
        pod = json.loads(json.dumps(self.api.objects["pods"][pod["metadata"]["uid"]]))
        if phase:
            pod["status"]["phase"] = phase
        for container, state in (states or {}).items():
            key = "initContainerStatuses" if container in [c["name"] for c in pod["spec"]["initContainers"]] \
                else "containerStatuses"
            rest = [s for s in pod["status"].get(key, []) if s["name"] != container]
            pod["status"][key] = rest + [{"name": container, "containerID": "containerd://" + "a" * 64,
                                          "state": state}]
        self.api.put("pods", pod)

    def delete_pod(self, pod):
        self.api.put("pods", self.api.objects["pods"][pod["metadata"]["uid"]], "DELETED")
        self.kubelet.forget(pod)

    def run(self, pod, container):
        """Admits the pod and starts one container of it."""
        self.kubelet.admit(pod)
        self.kubelet.start_container(pod, container)

    def wait_empty(self):
        """No grant, slot or spec is left."""
        eventually("nothing left", lambda: not self.grants() and not self.slots() and not self.specs())

    # -- what a runtime would find
    def spec(self, pod, container, resource=MEMORY):
        device = self.kubelet.cdi_device(pod, container, resource).split("=")[1]
        with open(f"{self.folder}/cdi/sluice.dev-grant-{device[1:]}.json") as file:
            spec = json.load(file)
        assert spec["kind"] == "sluice.dev/grant" and spec["devices"][0]["name"] == device, spec
        return spec["devices"][0]["containerEdits"]

    def grant(self, pod, container, resource=MEMORY):
        """The limits that the container's grant page holds, by card: {index: (limit MiB, permille)}."""
        mounts = {m["containerPath"]: m["hostPath"] for m in self.spec(pod, container, resource)["mounts"]}
        with open(mounts["/run/sluice/container/grant"] + "/page", "rb") as file:
            page = file.read()
        assert os.path.exists(mounts["/run/sluice/container/usage"])
        return read_page(page)

    def policy(self, pod, container):
        """The compute policy that the container's grant page says, of its first card."""
        mounts = {m["containerPath"]: m["hostPath"] for m in self.spec(pod, container)["mounts"]}
        with open(mounts["/run/sluice/container/grant"] + "/page", "rb") as file:
            return struct.unpack_from("<I", file.read(), 192 + 140)[0]

    def metrics(self, *words):
        """Lines of the agent's metrics text with all of these words."""
        with open(self.log) as file:
            port = [re.search(r"port=(\d+)", line)[1] for line in file if "metrics are served" in line][-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return [line for line in answer.read().decode().splitlines() if all(word in line for word in words)]

    def environment(self, pod, container, resource=MEMORY):
        return dict(line.split("=", 1) for line in self.spec(pod, container, resource).get("env", []))

    def grants(self):
        return sorted(name for name in os.listdir(f"{self.folder}/run/grants"))

    def slots(self):
        return sorted(os.listdir(f"{self.folder}/state/slots"))

    def specs(self):
        return sorted(os.listdir(f"{self.folder}/cdi"))


def refused(node, pod, container, words):
    """PreStartContainer is an error with these words; the whole of it."""
    import grpc
    try:
        node.kubelet.start_container(pod, container)
    except grpc.RpcError as error:
        assert words in error.details(), error.details()
        return error.details()
    raise AssertionError(f"container {container} was let through, expected: {words}")


def play(scenes):
    """Runs the scenes, or those that the command line names, one after the other."""
    chosen = [scene for scene in scenes if len(sys.argv) < 2 or scene.__name__ in sys.argv[1:]]
    assert chosen, f"no such scene; there are {[s.__name__ for s in scenes]}"
    failed = []
    for scene in chosen:
        began = time.monotonic()
        try:
            scene()
            print(f"ok {scene.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            failed.append(scene.__name__)
            print(f"FAILED {scene.__name__}", flush=True)
    if failed:
        print("failed: " + ", ".join(failed))
        sys.exit(1)


def read_page(page):
    """src/page/grant.h: header of 192 bytes; a card's index at 16, limit at 128, core at 136; 256 + 8 x 256 bytes."""
    magic, = struct.unpack_from("<Q", page, 0)
    if magic == 0:
        return None
    assert magic == 0x31544e5247434c53, hex(magic)
    count, = struct.unpack_from("<I", page, 16)
    cards = {}
    for i in range(count):
        at = 192 + i * (256 + 8 * 256)
        index, = struct.unpack_from("<I", page, at + 16)
        limit, = struct.unpack_from("<Q", page, at + 128)
        permille, = struct.unpack_from("<I", page, at + 136)
        cards[index] = (limit >> 20, permille)
    return cards
