"""Sluice installed in a cluster of real nodes the way a user does it: images loaded on every node, deploy/'s manifests
applied with kubectl, the shipped configuration given to kube-scheduler, simulated cards laid down by their DaemonSet.

    with InstalledCluster() as cluster:
        cluster.add_real_node("node-b", labels={**SIMULATED, "ack.node.gpu.schedule": "core_mem"})
        cluster.install()

What a real cluster has and this one lacks is a proxy for Services and their names; ServiceProxy stands in for it.
"""

import base64
import json
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import images as test_images
import node_world
from nodes import NodeCluster, wait_until

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
NAMESPACE = "sluice-system"
SIMULATED = {"sluice.dev/simulated-cards": "true"}
MODE = "ack.node.gpu.schedule"
PLAIN_SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
SIM_ROOT = "/opt/sluice-sim"


class ServiceProxy:
    """A Service's address and name, forwarded to a ready pod of it: what kube-proxy and the cluster's DNS do."""

    def __init__(self, cluster, namespace, name):
        self.cluster, self.namespace, self.name = cluster, namespace, name
        service = cluster.api.get(f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]
        self.target_port = service["ports"][0]["targetPort"]
        node_world.run("ip", "address", "add", f"{service['clusterIP']}/32", "dev", "lo")
        node_world.add_host(service["clusterIP"], f"{name}.{namespace}.svc")
        self.listener = socket.create_server((service["clusterIP"], service["ports"][0]["port"]), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def endpoints(self):
        slices = self.cluster.api.get(f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
                                      f"?labelSelector=kubernetes.io/service-name%3D{self.name}")["items"]
        return [address for one in slices for endpoint in one["endpoints"] or [] if endpoint["conditions"].get("ready")
                for address in endpoint["addresses"]]

    def _serve(self, client):
        for address in self.endpoints():
            try:
                server = socket.create_connection((address, self.target_port), timeout=5)
                server.settimeout(None)
                break
            except OSError:
                continue
        else:
            client.close()
            return
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        self._copy(client, server)
        back.join()
        client.close()
        server.close()

    @staticmethod
    def _copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class InstalledCluster(NodeCluster):
    def __init__(self, images=(), **options):
        build = Path(os.environ["SLUICE_BUILD"])
        shipped = test_images.shipped(build, node_world.folder(), "agent", "scheduler", "simulated-cards", "workloads")
        super().__init__(images=[*shipped, *images], config=PLAIN_SCHEDULER, **options)

    def __enter__(self):
        return self  # the scheduler is no process of the test's but a Deployment

    def add_sharing_node(self, name, mode="core_mem", labels=None, **options):
        """A node with simulated cards; mode None leaves the mode's label away."""
        return self.add_real_node(name, labels={**SIMULATED, **({MODE: mode} if mode else {}), **(labels or {})}, **options)

    def install(self, card="V100-SXM2-32GB", count=1, agent_arguments=(), replicas=1):
        """What docs/kubernetes.md tells a user to do. Returns when agents and scheduler are ready."""
        manifest = self.kubectl("kustomize", str(DEPLOY / "simulated-cards")).stdout
        manifest = re.sub(r"(name: CARD\s+value: )\S+", rf"\g<1>{card}", manifest)
        manifest = re.sub(r'(name: COUNT\s+value: )\S+', rf'\g<1>"{count}"', manifest)
        manifest = manifest.replace("replicas: 2", f"replicas: {replicas}")
        extra = "".join(f"        - {argument}\n" for argument in agent_arguments)
        manifest = manifest.replace("        - --whole-cards\n", f"        - --whole-cards\n{extra}")
        self.manifest = manifest
        self.apply(manifest)
        self.secrets = subprocess.run([DEPLOY / "scheduler/make-secrets"], capture_output=True, text=True, check=True).stdout
        self.apply(self.secrets)
        self.wait_rollout("daemonset/sluice-simulated-cards")
        self.wait_rollout("deployment/sluice-scheduler")
        self.service = ServiceProxy(self, NAMESPACE, "sluice-scheduler")
        self.wire_scheduler()
        self.wait_agents()

    def wire_scheduler(self):
        """The shipped configuration, with this kube-scheduler's own identity and the CA as a file."""
        secret = json.loads(self.kubectl("-n", NAMESPACE, "get", "secret", "sluice-kube-scheduler", "-o", "json").stdout)
        folder = self.directory / "sluice-tls"
        folder.mkdir(exist_ok=True)
        for name, value in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(value))
        text = (DEPLOY / "scheduler/kube-scheduler-config.yaml").read_text()
        text = text.replace("/etc/kubernetes/sluice", str(folder))
        text += self.scheduler_identity()
        self.restart_scheduler(text)

    def unwire_scheduler(self):
        """kube-scheduler without the extender, as before."""
        self.restart_scheduler("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + self.scheduler_identity())

    def scheduler_identity(self):
        return f"clientConnection:\n  kubeconfig: {self.control.directory}/scheduler.kubeconfig\nleaderElection:\n  leaderElect: false\n"

    def restart_scheduler(self, text):
        self.control.kill("kube-scheduler")
        Path(self.control.started["kube-scheduler"][0][1]).write_text(text)
        self.control.restart("kube-scheduler")

    def wait_rollout(self, what, seconds=90):
        result = self.kubectl("-n", NAMESPACE, "rollout", "status", what, f"--timeout={seconds}s")
        assert result.returncode == 0, f"{what}: {result.stderr.strip()}: {self.pods_text()}"

    def wait_agents(self, seconds=60):
        self.wait_rollout("daemonset/sluice-agent", seconds)

    def pods_text(self):
        """For messages: how the system's pods are and what a failing one said."""
        text = self.kubectl("-n", NAMESPACE, "get", "pods", "-o", "wide").stdout
        for pod in self.system_pods():
            if not all(one.get("ready") for one in pod["status"].get("containerStatuses", [])):
                name = pod["metadata"]["name"]
                text += f"--- {name}\n" + self.kubectl("-n", NAMESPACE, "logs", name, "--tail=20").stdout
                text += self.kubectl("-n", NAMESPACE, "describe", "pod", name).stdout[-1200:]
        return text

    def system_pods(self, selector=""):
        return self.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")["items"]

    def agent_of(self, node):
        """The name of the agent's pod on a node, or None."""
        for pod in self.system_pods("app%3Dsluice-agent"):
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]:
                return pod["metadata"]["name"]
        return None

    def wait_allocatable(self, node, wanted, seconds=40):
        """wanted: {resource: "31"}; None means that the node does not show it."""
        def now():
            shown = node.allocatable()
            return {name: shown.get(name) for name in wanted}
        try:
            wait_until(lambda: now() == wanted, seconds, "allocatable")
        except AssertionError:
            raise AssertionError(f"{node.name} shows {now()}, wanted {wanted} within {seconds} s; {self.pods_text()}") from None

    # --- the simulated cards' own word ---

    def sim(self, node, *arguments):
        return node.run(f"{SIM_ROOT}/sluice-sim", *arguments)

    def card_log(self, node, card=0, *arguments):
        return json.loads(self.sim(node, "log", f"{SIM_ROOT}/state/card{card}", *arguments, "--json"))

    def metrics(self, node, seconds=5):
        """The agent's metrics text, as Prometheus reads it."""
        name = self.agent_of(node.name)
        return self.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:9449/proxy/metrics").stdout
