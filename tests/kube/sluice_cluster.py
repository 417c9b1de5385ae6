"""A test cluster with Sluice's scheduler on it: made-up nodes, pods, events, and the extender wired into kube-scheduler.

Used by the tests in this folder. Nodes are objects without a kubelet: the scheduling part needs no more.
"""

import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cluster as control_plane  # noqa: E402

GPU_MEM, GPU_CORE, GPU_COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"


def scheduler_config(url, nodes=0, sampling=None, backoff=True):
    """The shipped wiring: every verb, order that counts, sums still checked by kube-scheduler."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "extenders": [{
            "urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind",
            "preemptVerb": "preempt", "weight": 141, "nodeCacheCapable": True, "ignorable": False, "httpTimeout": "5s",
            "managedResources": [{"name": GPU_MEM, "ignoredByScheduler": False},
                                 {"name": GPU_CORE, "ignoredByScheduler": False}]}]}
    if sampling is not None:
        config["percentageOfNodesToScore"] = sampling
    if backoff:
        config["podInitialBackoffSeconds"] = 1
        config["podMaxBackoffSeconds"] = 2
    return config


class Api:
    """JSON over HTTPS with the admin's certificate; one attribute per verb."""

    def __init__(self, directory, server):
        self.server = server
        self.context = ssl.create_default_context(cafile=f"{directory}/pki/ca.crt")
        self.context.load_cert_chain(f"{directory}/pki/admin.crt", f"{directory}/pki/admin.key")

    def call(self, method, path, body=None, content_type="application/json"):
        request = urllib.request.Request(self.server + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": content_type})
        with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
            try:
                return json.loads(answer.read() or b"null")
            except http.client.HTTPException as error:  # cut in the middle: as if it had not come
                raise ConnectionError(f"{method} {path}: {error!r}") from error

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body):
        return self.call("POST", path, body)

    def patch(self, path, body, kind="merge-patch"):
        return self.call("PATCH", path, body, f"application/{kind}+json")

    def delete(self, path):
        return self.call("DELETE", path, {"gracePeriodSeconds": 0})


def free_port():
    return control_plane.free_ports(1)[0]


class SluiceCluster:
    def __init__(self, scheduler_arguments=(), sampling=None, config=None, keep=False, tls=False, client_ca=False,
                 **control_plane_options):
        """tls: the extender speaks HTTPS and knows kube-scheduler by its certificate; needed for the webhook.
        client_ca: it answers the extender's verbs for known certificates alone."""
        self.build = Path(os.environ["SLUICE_BUILD"])
        self.directory = Path(tempfile.mkdtemp(prefix="sluice-kube-"))
        self.scheduler_arguments = list(scheduler_arguments)
        self.port = free_port()
        self.keep = keep
        self.sluice = None
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", self.directory / "signing.key"], check=True)
        self.url = f"http://127.0.0.1:{self.port}"
        config = config or scheduler_config(self.url, sampling=sampling)
        self.context = None
        if tls:
            self.use_tls(config, client_ca)
        (self.directory / "scheduler.json").write_text(json.dumps(config))
        self.control = control_plane.Cluster(self.directory / "cluster")
        self.control.start(scheduler_config=self.directory / "scheduler.json", **control_plane_options)
        state = self.control.state()
        self.programs = state["programs"]
        self.kubeconfig = state["kubeconfig"]
        self.sluice_kubeconfig = state["kubeconfig"]
        self.api = Api(self.control.directory, state["server"])

    def use_tls(self, config, client_ca):
        self.authority = authority = control_plane.Authority(self.directory / "tls")
        certificate, key = authority.issue("sluice", "/CN=sluice-scheduler", "IP:127.0.0.1")
        client, client_key = authority.issue("client", "/CN=kube-scheduler")
        self.ca_file = authority.folder / "ca.crt"
        self.scheduler_arguments += ["--tls-cert", certificate, "--tls-key", key]
        if client_ca:
            self.scheduler_arguments += ["--client-ca", self.ca_file]
        self.url = f"https://127.0.0.1:{self.port}"
        config["extenders"][0].update(urlPrefix=self.url, enableHTTPS=True, tlsConfig={
            "caFile": str(self.ca_file), "certFile": str(client), "keyFile": str(client_key)})
        self.context = ssl.create_default_context(cafile=str(self.ca_file))

    def add_webhook(self, kind="Mutating", failure_policy="Fail"):
        self.api.post(f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations", {
            "metadata": {"name": "sluice"}, "webhooks": [{
                "name": "webhook.sluice.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": failure_policy, "timeoutSeconds": 5,
                "clientConfig": {"url": f"{self.url}/webhook",
                                 "caBundle": base64.b64encode(self.ca_file.read_bytes()).decode()},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
                          {"operations": ["CREATE", "UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"],
                           "resources": ["deployments", "statefulsets", "replicasets", "daemonsets"]},
                          {"operations": ["CREATE", "UPDATE"], "apiGroups": ["batch"], "apiVersions": ["v1"],
                           "resources": ["jobs", "cronjobs"]}]}]})

    def __enter__(self):
        self.start_sluice()
        return self

    def __exit__(self, kind, *_):
        self.stop_sluice()
        self.control.stop(keep=kind not in (None, SystemExit))
        if kind in (None, SystemExit) and not self.keep:
            subprocess.run(["rm", "-rf", self.directory], check=True)
        else:
            print(f"logs of the scheduler: {self.directory}", file=sys.stderr)

    def start_sluice(self):
        log = open(self.directory / "sluice-scheduler.log", "ab")
        self.sluice = subprocess.Popen(
            [self.build / "bin" / "sluice-scheduler", "--kubeconfig", self.sluice_kubeconfig, "--signing-key",
             self.directory / "signing.key", "--listen-port", str(self.port), *self.scheduler_arguments],
            stdout=log, stderr=log)
        wait_until(lambda: self.extender("/readyz") == "ok", 20, "sluice-scheduler ready")

    def through(self, url, name, insecure=False):
        """Has schedulers started from now on reach the API server by another address."""
        config = json.loads(Path(self.kubeconfig).read_text())
        config["clusters"][0]["cluster"]["server"] = url
        if insecure:
            del config["clusters"][0]["cluster"]["certificate-authority"]
            config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        self.sluice_kubeconfig = str(path)

    def start_replica(self, port, arguments=(), environment=None):
        """A further sluice-scheduler; the caller stops it."""
        log = open(self.directory / f"sluice-scheduler-{port}.log", "ab")
        return subprocess.Popen(
            [self.build / "bin" / "sluice-scheduler", "--kubeconfig", self.sluice_kubeconfig, "--signing-key",
             self.directory / "signing.key", "--listen-port", str(port), *self.scheduler_arguments, *arguments],
            stdout=log, stderr=log, env={**os.environ, **(environment or {})})

    def stop_sluice(self, kill=False):
        if self.sluice is not None:
            self.sluice.kill() if kill else self.sluice.terminate()
            self.sluice.wait(timeout=20)
            self.sluice = None

    def extender(self, path, body=None):
        try:
            request = urllib.request.Request(f"{self.url}{path}",
                                             data=None if body is None else json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=10, context=self.context) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError as error:
            self.last_error = repr(error)
            return ""

    def state(self):
        return json.loads(self.extender("/debug/state"))

    def kubectl(self, *arguments, stdin=None):
        return subprocess.run([f"{self.programs}/kubectl", "--kubeconfig", self.kubeconfig, *arguments], text=True,
                              input=stdin, capture_output=True)

    def add_node(self, name, cards=1, memory_mib=32510, mode="core_mem", labels=None, cpu="64", pods="110", bare=False,
                 sharing=None, sick=()):
        """A Ready node with `cards` equal cards, or the list `cards` of memory sizes in MiB. sharing: the mode whose resources
        it shows, where that is not its label's; sick: indexes of cards."""
        sizes = cards if isinstance(cards, list) else [memory_mib] * cards
        units = [size // 1024 for size in sizes]
        listed = [{"index": i, "uuid": f"GPU-{name}-{i}", "model": "Tesla-V100", "memory_mib": size, "units": units[i],
                   "healthy": i not in sick} for i, size in enumerate(sizes)]
        annotations = {} if bare else {"sluice.dev/cards": json.dumps(listed)}
        self.api.post("/api/v1/nodes", {"metadata": {
            "name": name, "labels": {**({"ack.node.gpu.schedule": mode} if mode else {}), "kubernetes.io/hostname": name,
                                     **(labels or {})},
            "annotations": annotations}})
        capacity = {"cpu": cpu, "memory": "256Gi", "pods": pods, GPU_COUNT: str(len(sizes))}
        if (sharing or mode) in ("core_mem", "cgpu", "share"):
            capacity[GPU_MEM] = str(sum(units))
        if (sharing or mode) == "core_mem":
            capacity[GPU_CORE] = str(100 * len(sizes))
        self.api.patch(f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": capacity, "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "made up"}]}},
            "strategic-merge-patch")
        self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def add_pod(self, name, memory=None, core=None, **extra):
        """A pod of one container, or what `containers`, `init_containers`, `labels`, ... say."""
        def container(one):
            limits = {}
            if one.get("memory") is not None:
                limits[GPU_MEM] = str(one["memory"])
            if one.get("core") is not None:
                limits[GPU_CORE] = str(one["core"])
            if one.get("cpu") is not None:
                limits["cpu"] = str(one["cpu"])
            out = {"name": one.get("name", "c"), "image": "none", "resources": {"limits": limits}}
            if one.get("sidecar"):
                out["restartPolicy"] = "Always"
            return out

        containers = extra.get("containers") or [{"memory": memory, "core": core, "cpu": extra.get("cpu")}]
        spec = {"containers": [container({"name": f"c{i}", **one}) for i, one in enumerate(containers)],
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}]}
        if extra.get("init_containers"):
            spec["initContainers"] = [container({"name": f"i{i}", **one}) for i, one in enumerate(extra["init_containers"])]
        for key in ("nodeName", "priorityClassName", "schedulerName", "nodeSelector", "affinity"):
            if extra.get(key):
                spec[key] = extra[key]
        return self.api.post("/api/v1/namespaces/default/pods", {"metadata": {
            "name": name, "labels": extra.get("labels") or {}, "annotations": extra.get("annotations") or {}}, "spec": spec})

    def pod(self, name):
        return self.api.get(f"/api/v1/namespaces/default/pods/{name}")

    def delete_pod(self, name):
        self.api.delete(f"/api/v1/namespaces/default/pods/{name}")

    def finish_pod(self, name, phase="Succeeded"):
        self.api.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"phase": phase}}, "strategic-merge-patch")

    def node_of(self, name):
        return self.pod(name)["spec"].get("nodeName")

    def wait_bound(self, name, seconds=15):
        return wait_until(lambda: self.node_of(name), seconds, f"pod {name} bound")

    def cards_of(self, name):
        """Card indexes of our signed record."""
        record = self.pod(name)["metadata"].get("annotations", {}).get("sluice.dev/allocation")
        return [card["index"] for card in json.loads(record)["cards"]] if record else None

    def message_of(self, name):
        """Why kube-scheduler says that the pod is not bound."""
        conditions = self.pod(name)["status"].get("conditions") or []
        return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")

    def events_of(self, name):
        events = self.api.get("/api/v1/namespaces/default/events")["items"]
        return [event["message"] for event in events if event["involvedObject"].get("name") == name]


def wait_until(probe, seconds, what):
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)
