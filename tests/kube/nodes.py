"""Real nodes for tests: a kubelet and a containerd each, in a mount namespace of its own, several on one machine.

    node_world.enter()
    with NodeCluster() as cluster:
        node = cluster.add_real_node("node-a", labels={"ack.node.gpu.schedule": "core_mem"})
        cluster.kubectl("apply", "-f", "job.yaml")
        node.kill_kubelet(); node.start_kubelet(); node.reboot()

A node has its own /run (a tmpfs, empty after a reboot), /var/lib/kubelet, /var/lib/containerd, /var/lib/sluice, /opt and
pod network; its name resolves to an address of the documentation range. Everything else it shares with the machine.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import cluster as control_plane
import node_world
from sluice_cluster import SluiceCluster, wait_until

HERE = Path(__file__).resolve().parent
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
OWN_FOLDERS = {"kubelet": "/var/lib/kubelet", "cni": "/var/lib/cni", "sluice": "/var/lib/sluice", "opt": "/opt",
               "logs-pods": "/var/log/pods", "logs-containers": "/var/log/containers", "etc-cdi": "/etc/cdi",
               "containerd": "/var/lib/containerd"}
# What the kubelet would set on the machine itself; it leaves alone what reads as it should.
KERNEL_SETTINGS = {"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
                   "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000"}


def build_programs(folder, programs):
    """Programs of a Go module of this folder, cached by their versions; returns where they are."""
    source = HERE / folder
    target = control_plane.cache_root() / f"{folder}-{control_plane.content_key(source, ('go.mod', 'go.sum'))}"
    if all((target / name).exists() for name in programs):
        return target
    if shutil.which("go") is None:
        control_plane.fail(f"the program 'go' (1.26 or newer) is needed to build {folder}; install Go and try again")
    print(f"nodes: building {folder} (minutes the first time)", file=sys.stderr, flush=True)
    started = time.monotonic()
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    result = subprocess.run(["go", "build", "-trimpath", "-ldflags=-s", "-tags", "no_btrfs no_devmapper no_zfs no_tracing seccomp",
                             "-o", f"{partial}/", "tool"], cwd=source)
    if result.returncode != 0:
        control_plane.fail(f"building {folder} failed")
    partial.rename(target)
    print(f"nodes: {folder} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return target


class Node:
    """One machine of the cluster, as far as the cluster can tell."""

    def __init__(self, cluster, name, number, labels=None, kubelet_settings=None, cdi=True, user_namespaces=False):
        self.cluster = cluster
        self.name = name
        self.labels = labels or {}
        self.folder = node_world.folder() / name
        self.cgroup = f"{node_world.cgroup_name()}/{name}"
        self.address = f"192.0.2.{10 + number}"
        self.subnet = f"10.88.{number}.0/24"
        self.bridge = f"pods{number}"
        self.cdi, self.kubelet_settings = cdi, kubelet_settings or {}
        # Debian's runc gives no user namespaces; one that does needs libseccomp's headers to be built.
        newer = user_namespaces and subprocess.run(["pkg-config", "--exists", "libseccomp"], capture_output=True).returncode == 0
        self.runc = build_programs("runc", ["runc"]) / "runc" if newer else "runc"
        self.boots = 0
        self.holder = self.containerd = self.kubelet = None
        self._prepare()

    def _prepare(self):
        """What lasts over reboots: folders, certificates, configurations, the address."""
        for name in (*OWN_FOLDERS, "config", "logs"):
            (self.folder / name).mkdir(parents=True)
        if subprocess.run(["stat", "-f", "-c", "%T", self.folder], capture_output=True, text=True).stdout.strip() == "overlayfs":
            node_world.run("mount", "-t", "tmpfs", "none", self.folder / "containerd")  # overlays do not lie on overlays
        node_world.run("ip", "address", "add", f"{self.address}/32", "dev", "lo")
        node_world.add_host(self.address, self.name)
        authority = self.cluster.control.authority
        authority.issue(self.name, f"/CN={self.name}", f"DNS:{self.name},IP:{self.address}")
        authority.kubeconfig(self.folder / "config/kubeconfig", self.cluster.control.state()["server"],
                             f"node-{self.name}", f"/O=system:nodes/CN=system:node:{self.name}")
        for path, value in KERNEL_SETTINGS.items():
            file = self.folder / "config/sys" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        (self.folder / "config/containerd.toml").write_text(CONTAINERD_CONFIG.format(
            cni=self.folder / "config/cni", pause=self.cluster.pause_image, cdi=json.dumps(["/etc/cdi", "/var/run/cdi"] if self.cdi else ["/etc/no-cdi"]), runc=self.runc))
        (self.folder / "config/cni").mkdir()
        (self.folder / "config/cni/10-pods.conflist").write_text(json.dumps({
            "cniVersion": "1.0.0", "name": "pods", "plugins": [{
                "type": "bridge", "bridge": self.bridge, "isGateway": True, "ipMasq": False,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": self.subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}))
        (self.folder / "config/kubelet.json").write_text(json.dumps(self._kubelet_config(authority.folder), indent=1))

    def _kubelet_config(self, pki):
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": self.address, "port": 10250, "healthzBindAddress": self.address, "healthzPort": 10248,
            "tlsCertFile": str(pki / f"{self.name}.crt"), "tlsPrivateKeyFile": str(pki / f"{self.name}.key"),
            "authentication": {"x509": {"clientCAFile": str(pki / "ca.crt")}, "webhook": {"enabled": True},
                               "anonymous": {"enabled": False}},
            "authorization": {"mode": "Webhook"}, "failCgroupV1": False, "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}", "failSwapOn": False, "enforceNodeAllocatable": [], "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "resolvConf": "",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99, "maxPods": 200,
            "nodeStatusUpdateFrequency": "2s", "registerNode": True, "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "kubeAPIQPS": 200, "kubeAPIBurst": 400, **self.kubelet_settings}

    # --- the machine ---

    def start(self):
        """Powers the node on: a new mount namespace, containerd, images, kubelet; returns when the node is Ready."""
        node_world.make_cgroup(f"{self.cgroup}/system")
        self.boots += 1
        boot_id = self.folder / "config/boot_id"
        boot_id.write_text(f"00000000-0000-4000-8000-{os.getpid():08x}{self.boots:04x}\n")
        # A user namespace may mount /proc only where a whole one is in sight, without the mounts over parts of it below.
        lines = ["set -e", "mount -t tmpfs -o mode=755,size=512m none /run", "mkdir -p /run/lock /run/netns /run/whole-proc",
                 "mount -t proc proc /run/whole-proc"]
        for name, path in OWN_FOLDERS.items():
            lines += [f"mkdir -p {path}", f"mount --bind {self.folder / name} {path}"]
        for path in KERNEL_SETTINGS:
            lines += [f"[ ! -e /proc/sys/{path} ] || mount --bind {self.folder}/config/sys/{path} /proc/sys/{path}"]
        lines += [f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id", "mount --make-rshared /", "echo up", "exec sleep infinity"]
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)],
                                       stdout=subprocess.PIPE, text=True, preexec_fn=self._enter_cgroup)
        if self.holder.stdout.readline() != "up\n":
            raise RuntimeError(f"{self.name}: the mount namespace could not be made (see above)")
        self.start_containerd()
        if self.boots == 1:
            for archive in self.cluster.images:
                self.load_image(archive)
        self.start_kubelet()
        self.wait_ready()
        if self.boots == 1 and self.labels:
            self.cluster.label_node(self.name, self.labels)
        return self

    def stop(self):
        """Power off: every process of the node is killed at once, its mounts and its /run are gone."""
        deadline = time.monotonic() + 20
        while True:
            pids = node_world.processes_in(self.cgroup)
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not pids:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: processes {sorted(pids)} do not end")
            time.sleep(0.05)
        for process in (self.kubelet, self.containerd, self.holder):
            if process is not None:
                process.wait()
        self.holder = self.containerd = self.kubelet = None
        node_world.remove_cgroups(self.cgroup)
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True)

    def reboot(self, seconds_off=0):
        self.stop()
        time.sleep(seconds_off)
        return self.start()

    def _enter_cgroup(self):
        os.setsid()
        node_world.enter_cgroup(f"{self.cgroup}/system")

    def command(self, *arguments):
        """The command line that runs something on the node."""
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *map(str, arguments)]

    def run(self, *arguments, check=True, stdin=None):
        """Runs a program on the node, waits, returns what it printed."""
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True, input=stdin)
        if check and result.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, arguments))} ended with {result.returncode}: "
                               f"{result.stderr.strip() or result.stdout.strip()}")
        return result.stdout

    def spawn(self, name, *arguments, environment=None):
        """Starts a program of the node in the background, its output in logs/."""
        with open(self.folder / "logs" / f"{name}.log", "ab") as log:
            return subprocess.Popen(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    preexec_fn=self._enter_cgroup, env={**os.environ, **(environment or {})})

    def path(self, path):
        """A path of the node as the test's process reaches it."""
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def log(self, name):
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- its programs ---

    def start_containerd(self):
        programs = self.cluster.containerd_programs
        self.containerd = self.spawn("containerd", programs / "containerd", "--config", self.folder / "config/containerd.toml",
                                     environment={"PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin"})
        wait_until(lambda: self._alive(self.containerd, "containerd") and subprocess.run(
            self.command(programs / "ctr", "version"), capture_output=True).returncode == 0, 30, f"{self.name}: containerd answers")

    def start_kubelet(self):
        """Starts it; wait_ready() waits until the cluster knows."""
        self.kubelet_started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.kubelet = self.spawn("kubelet", Path(self.cluster.programs) / "kubelet", "--config", self.folder / "config/kubelet.json",
                                  "--kubeconfig", self.folder / "config/kubeconfig", "--hostname-override", self.name,
                                  "--node-ip", self.address)

    def kill_kubelet(self, number=signal.SIGKILL):
        self._kill(self.kubelet, number)

    def kill_containerd(self, number=signal.SIGKILL):
        """Containers go on: their shims outlive containerd."""
        self._kill(self.containerd, number)

    @staticmethod
    def _kill(process, number):
        process.send_signal(number)
        process.wait(timeout=30)

    def _alive(self, process, name):
        if process.poll() is not None:
            raise RuntimeError(f"{self.name}: {name} ended with status {process.returncode}: {self.log(name)[-1500:]}")
        return True

    def wait_ready(self, seconds=90):
        wait_until(lambda: self._alive(self.kubelet, "kubelet") and self.ready(), seconds, f"node {self.name} Ready")

    def ready(self):
        """Ready by this kubelet, not by what the last one said."""
        node = self.cluster.node_object(self.name)
        if node is None or node["status"].get("nodeInfo", {}).get("bootID") != (self.folder / "config/boot_id").read_text().strip():
            return False
        ready = next((one for one in node["status"].get("conditions", []) if one["type"] == "Ready"), None)
        if ready is None or ready["status"] != "True" or ready["lastHeartbeatTime"] < self.kubelet_started:
            return False
        with socket.socket() as probe:
            return probe.connect_ex((self.address, 10250)) == 0

    def ctr(self, *arguments, check=True):
        return self.run(self.cluster.containerd_programs / "ctr", "-n", "k8s.io", *arguments, check=check)

    def load_image(self, archive):
        self.ctr("images", "import", str(archive))

    def allocatable(self):
        return self.cluster.node_object(self.name)["status"]["allocatable"]


CONTAINERD_CONFIG = """version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  cdi_spec_dirs = {cdi}
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = false
    BinaryName = "{runc}"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{cni}"
"""


class NodeCluster(SluiceCluster):
    """A control plane with Sluice's scheduler (SluiceCluster), to which real nodes are added."""

    def __init__(self, images=(), **options):
        import images as test_images
        self.containerd_programs = build_programs("containerd", CONTAINERD_PROGRAMS)
        self.real_nodes = []
        self.pause_image, pause = test_images.pause(node_world.folder())
        self.images = [pause, *images]
        # Pods reach the API server at the address of the Service "kubernetes".
        super().__init__(api_address=node_world.SERVICE_ADDRESS, api_port=443, **options)

    def add_real_node(self, name, labels=None, start=True, **options):
        """options: kubelet_settings, cdi, user_namespaces."""
        node = Node(self, name, len(self.real_nodes) + 1, labels, **options)
        self.real_nodes.append(node)
        return node.start() if start else node

    def node_object(self, name):
        import urllib.error
        try:
            return self.api.get(f"/api/v1/nodes/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def label_node(self, name, labels):
        """A label of value None is removed."""
        self.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    wait_for = staticmethod(wait_until)

    def apply(self, manifest):
        """kubectl apply of a manifest's text; returns what kubectl said."""
        result = self.kubectl("apply", "-f", "-", stdin=manifest)
        assert result.returncode == 0, result.stderr
        return result.stdout + result.stderr

    def exec(self, pod, *command, container=None, check=True):
        """What a command inside a pod's container prints."""
        where = ["-c", container] if container else []
        result = self.kubectl("exec", pod, *where, "--", *command)
        assert not check or result.returncode == 0, f"{' '.join(command)} in {pod}: {result.stderr.strip() or result.stdout.strip()}"
        return result.stdout

    def pod(self, name, namespace="default"):
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def wait_phase(self, pod, phase, seconds=60, namespace="default"):
        """phase: one, or several that will all do."""
        wanted = (phase,) if isinstance(phase, str) else phase

        def reached():
            now = self.pod(pod, namespace)["status"].get("phase")
            assert now in wanted or now not in ("Failed", "Succeeded"), f"{pod} is {now}: {self.describe(pod, namespace)}"
            return now in wanted
        try:
            wait_until(reached, seconds, f"pod {pod} {phase}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.describe(pod, namespace)}") from None

    def wait_running(self, pod, seconds=60):
        """Running, with every container started."""
        self.wait_phase(pod, "Running", seconds)
        wait_until(lambda: all(one.get("started") for one in self.pod(pod)["status"].get("containerStatuses", [{}])), seconds,
                   f"every container of {pod} started")

    def describe(self, pod, namespace="default"):
        status = self.pod(pod, namespace)["status"]
        return json.dumps({"status": {key: status.get(key) for key in ("phase", "reason", "message", "initContainerStatuses", "containerStatuses")},
                           "events": self.events_of(pod)[-5:]})[:3000]

    def __exit__(self, kind, *rest):
        if kind is not None:  # for the logs that a failure keeps; the control plane removes its own
            shutil.copytree(self.control.directory / "logs", node_world.folder() / "control-plane", dirs_exist_ok=True)
        for node in self.real_nodes:
            if node.holder is not None:
                node.stop()
        super().__exit__(kind, *rest)
