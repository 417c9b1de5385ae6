"""Large made-up clusters: thousands of objects made and removed over a few kept connections, a watch that notes when
each pod was bound, and kube-scheduler started anew with another configuration. Used by scale_test.py."""

import http.client
import json
import re
import ssl
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from sluice_cluster import GPU_CORE, GPU_COUNT, GPU_MEM, SluiceCluster, scheduler_config, wait_until

CLIENTS = 8
PODS = "/api/v1/namespaces/default/pods"


class Connections:
    """One kept HTTPS connection per thread."""

    def __init__(self, api):
        self.host = api.server.removeprefix("https://")
        self.context = api.context
        self.local = threading.local()

    def call(self, method, path, body=None, content_type="application/json"):
        for attempt in range(5):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = self.local.connection = http.client.HTTPSConnection(self.host, context=self.context,
                                                                                 timeout=60)
            try:
                connection.request(method, path, None if body is None else json.dumps(body),
                                   {"Content-Type": content_type})
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.local.connection = None
                if attempt == 4:
                    raise
                continue
            if answer.status == 429:
                time.sleep(0.2)
                continue
            if answer.status >= 400 and not (method == "DELETE" and answer.status == 404):
                raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
            return data
        raise RuntimeError(f"{method} {path}: the API server has no room")

    def every(self, calls):
        """Makes all (method, path, body) calls from a few threads."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in pool.map(lambda one: self.call(*one), calls):
                pass


class BindWatch:
    """Notes the time at which the API shows each pod bound."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.bound_at = {}
        self.stopping = False
        listed = cluster.api.get(f"{PODS}?limit=1")["metadata"]["resourceVersion"]
        self.thread = threading.Thread(target=self.follow, args=(listed,), daemon=True)
        self.thread.start()

    def follow(self, version):
        request = urllib.request.Request(f"{self.cluster.api.server}{PODS}?watch=1&resourceVersion={version}")
        with urllib.request.urlopen(request, context=self.cluster.api.context, timeout=600) as answer:
            for line in answer:
                if self.stopping:
                    return
                event = json.loads(line)
                pod = event["object"]
                if event["type"] == "MODIFIED" and pod["spec"].get("nodeName"):
                    self.bound_at.setdefault(pod["metadata"]["name"], time.monotonic())


def config_of(url, extender, sampling):
    """Both with the client limits lifted, so that what is measured is scheduling."""
    config = scheduler_config(url, sampling=sampling)
    if not extender:
        del config["extenders"]
    config["clientConnection"] = {"qps": 5000, "burst": 5000}
    return config


class LargeCluster(SluiceCluster):
    """Nodes are made up, so kube-controller-manager, which would find them dead, is stopped once it has made the service
    accounts."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.control.kill("kube-controller-manager")
        self.connections = Connections(self.api)
        self.nodes = []

    def make_node(self, name, sizes, pods=250):
        listed = [{"index": i, "uuid": f"GPU-{name}-{i}", "model": "Tesla-V100", "memory_mib": size}
                  for i, size in enumerate(sizes)]
        capacity = {"cpu": "64", "memory": "256Gi", "pods": str(pods), GPU_COUNT: str(len(sizes)),
                    GPU_MEM: str(sum(size // 1024 for size in sizes)), GPU_CORE: str(100 * len(sizes))}
        return {"metadata": {"name": name,
                             "labels": {"ack.node.gpu.schedule": "core_mem", "kubernetes.io/hostname": name},
                             "annotations": {"sluice.dev/cards": json.dumps(listed)}},
                "status": {"capacity": capacity, "allocatable": capacity,
                           "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "made up"}]}}

    def add_nodes(self, named_sizes):
        started = time.monotonic()
        self.connections.every(("POST", "/api/v1/nodes", self.make_node(name, sizes)) for name, sizes in named_sizes)
        self.nodes += [name for name, _ in named_sizes]
        wait_until(lambda: self.metric("sluice_scheduler_nodes") == len(self.nodes), 60, "all nodes known")
        print(f"{len(named_sizes)} nodes made in {time.monotonic() - started:.1f} s", flush=True)

    def remove_nodes(self):
        self.connections.every(("DELETE", f"/api/v1/nodes/{name}", None) for name in self.nodes)
        self.nodes = []
        wait_until(lambda: self.metric("sluice_scheduler_nodes") == 0, 60, "all nodes gone")

    @staticmethod
    def make_pod(name, memory=10, core=30, **spec):
        return {"metadata": {"name": name}, "spec": {
            "containers": [{"name": "c", "image": "none",
                            "resources": {"limits": {GPU_MEM: str(memory), GPU_CORE: str(core)}}}],
            "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}], **spec}}

    def add_pods(self, pods):
        self.connections.every(("POST", PODS, pod) for pod in pods)

    def remove_pods(self):
        names = [pod["metadata"]["name"] for pod in self.api.get(PODS)["items"]]
        self.connections.every(("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0}) for name in names)
        wait_until(lambda: self.metric("sluice_scheduler_pods") == 0, 60, "all pods gone")

    def stop_kube_scheduler(self):
        self.control.kill("kube-scheduler")

    def start_kube_scheduler(self, config):
        path = self.control.directory / "scheduler-config.json"
        kubeconfig = json.loads(path.read_text())["clientConnection"]["kubeconfig"]
        config["clientConnection"]["kubeconfig"] = kubeconfig
        config["leaderElection"] = {"leaderElect": False}
        path.write_text(json.dumps(config))
        self.control.restart("kube-scheduler")
        port = self.control.started["kube-scheduler"][0][self.control.started["kube-scheduler"][0].index("--secure-port") + 1]
        unchecked = ssl._create_unverified_context()  # its certificate signs itself
        wait_until(lambda: self.control._http(f"https://127.0.0.1:{port}/healthz", unchecked), 60, "kube-scheduler up")

    def metric(self, name):
        """Sum of a metric of sluice-scheduler over its labels, or of those that the name's braces select."""
        labels = "" if "{" in name else r"(?:\{[^}]*\})?"
        return sum(map(float, re.findall(f"^{re.escape(name)}{labels} (\\S+)$", self.extender("/metrics"), re.M)))

    def filter_calls(self):
        return self.metric('sluice_scheduler_request_duration_seconds_count{verb="filter"}')


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
