#!/usr/bin/env python3
"""A real Kubernetes control plane for tests, in a directory of its own, on loopback.

    cluster.py build                    etcd and Kubernetes from Go modules, cached by their content under build/kube
    cluster.py start [--dir DIR] ...    starts a cluster and prints KUBECONFIG=... (and DIR=...)
    cluster.py stop DIR                 stops it and removes DIR

Several clusters run side by side: every port is taken free from the kernel. Nothing built here is ever shipped.
SLUICE_KUBE_VERSION=1.34.4 makes it another Kubernetes, built once (a quarter of an hour on two cores).
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
PINNED_VERSION = "v1.36.3"  # of control-plane/go.mod
KUBERNETES_VERSION = "v" + os.environ.get("SLUICE_KUBE_VERSION", PINNED_VERSION[1:])
PROGRAMS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"]


def fail(message):
    print(f"cluster: {message}", file=sys.stderr)
    sys.exit(1)


def cache_root():
    return Path(os.environ.get("SLUICE_KUBE_CACHE", SOURCE / "build" / "kube"))


def content_key(folder, names=("go.mod", "go.sum", "main.go")):
    digest = hashlib.sha256()
    for name in names:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def control_plane_module():
    """The folder of the module that is built: the tree's, or a copy of it for another version of Kubernetes, whose own
    requirements are worked out once."""
    pinned = HERE / "control-plane"
    if KUBERNETES_VERSION == PINNED_VERSION:
        return pinned
    if not re.fullmatch(r"v1\.\d+\.\d+", KUBERNETES_VERSION):
        fail(f"SLUICE_KUBE_VERSION '{KUBERNETES_VERSION[1:]}': expected a version such as 1.34.4")
    folder = cache_root() / f"control-plane-{KUBERNETES_VERSION}-{content_key(pinned)}"
    if folder.exists():
        return folder
    if shutil.which("go") is None:
        fail("the program 'go' (1.26 or newer) is needed to build a real control plane; install Go and try again")
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    shutil.copy(pinned / "main.go", partial)
    # Kubernetes' modules in step, what they need as they say themselves.
    lines = [line for line in (pinned / "go.mod").read_text().splitlines() if not line.endswith("// indirect")]
    text = "\n".join(lines).replace(f" {PINNED_VERSION}", f" {KUBERNETES_VERSION}")
    (partial / "go.mod").write_text(text.replace(f" v0{PINNED_VERSION[2:]}", f" v0{KUBERNETES_VERSION[2:]}") + "\n")
    result = subprocess.run(["go", "mod", "tidy"], cwd=partial, capture_output=True, text=True)
    if result.returncode != 0:
        fail(f"Kubernetes {KUBERNETES_VERSION[1:]} cannot be had as Go modules: {result.stderr.strip()[-600:]}")
    partial.rename(folder)
    return folder


def go_build(folder, name, ldflags):
    """Builds one module's main package unless the cache has it; returns the binary's path."""
    target = cache_root() / f"{name}-{content_key(folder)}" / name
    if target.exists():
        return target
    if shutil.which("go") is None:
        fail("the program 'go' (1.26 or newer) is needed to build a real control plane; install Go and try again")
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"cluster: building {name} (minutes the first time)", file=sys.stderr, flush=True)
    started = time.monotonic()
    partial = target.with_suffix(f".partial-{os.getpid()}")
    result = subprocess.run(["go", "build", "-trimpath", f"-ldflags=-s {ldflags}", "-o", str(partial), "."], cwd=folder)
    if result.returncode != 0:
        fail(f"building {name} failed")
    partial.rename(target)
    print(f"cluster: {name} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return target


def build():
    """Returns the folder that holds every program under its own name."""
    module = control_plane_module()
    etcd = go_build(HERE / "etcd", "etcd", "")
    major, minor = KUBERNETES_VERSION[1:].split(".")[:2]
    stamp = "-X k8s.io/component-base/version."
    kubernetes = go_build(module, "kubernetes",
                          f"{stamp}gitVersion={KUBERNETES_VERSION} {stamp}gitMajor={major} {stamp}gitMinor={minor} "
                          f"{stamp}gitTreeState=clean")
    programs = kubernetes.parent
    for name, origin in [(program, kubernetes) for program in PROGRAMS] + [("etcd", etcd)]:
        link = programs / name
        if not link.exists():
            try:
                link.symlink_to(origin)
            except FileExistsError:
                pass
    return programs


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def openssl(*arguments):
    result = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        fail(f"openssl {arguments[0]} failed: {result.stderr.strip()}")


class Authority:
    """One CA for everything; a client's groups are the O fields of its certificate."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj",
                "/CN=sluice-test-ca", "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt"))
        openssl("genrsa", "-out", str(folder / "service-account.key"), "2048")
        openssl("rsa", "-in", str(folder / "service-account.key"), "-pubout", "-out", str(folder / "service-account.pub"))

    def issue(self, name, subject, alternative_names=""):
        key, request, certificate = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
                "-keyout", str(key), "-out", str(request))
        extension = self.folder / f"{name}.ext"
        extension.write_text("extendedKeyUsage=serverAuth,clientAuth\n" +
                             (f"subjectAltName={alternative_names}\n" if alternative_names else ""))
        openssl("x509", "-req", "-in", str(request), "-CA", str(self.folder / "ca.crt"), "-CAkey",
                str(self.folder / "ca.key"), "-CAcreateserial", "-days", "30", "-extfile", str(extension), "-out",
                str(certificate))
        return certificate, key

    def kubeconfig(self, path, server, name, subject):
        certificate, key = self.issue(name, subject)
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server,
                                                      "certificate-authority": str(self.folder / "ca.crt")}}],
            "users": [{"name": name, "user": {"client-certificate": str(certificate), "client-key": str(key)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}]}, indent=1))
        return path


class Cluster:
    def __init__(self, directory):
        self.directory = Path(directory)
        self.state_path = self.directory / "state.json"
        self.started = {}  # name -> (arguments, process), of those started by this object

    def spawn(self, name, arguments):
        """Starts a program in a session of its own, its output in logs/."""
        (self.directory / "logs").mkdir(exist_ok=True)
        log = open(self.directory / "logs" / f"{name}.log", "ab")
        process = subprocess.Popen([str(self.programs / name), *arguments], stdout=log, stderr=log, start_new_session=True,
                                   cwd=self.directory)
        state = self.state()
        state["pids"][name] = process.pid
        self.state_path.write_text(json.dumps(state, indent=1))
        self.started[name] = (arguments, process)
        return process

    def kill(self, name, number=signal.SIGKILL):
        """For tests of faults: stops one program the hard way and waits until it is gone."""
        process = self.started[name][1]
        process.send_signal(number)
        process.wait(timeout=30)

    def scheduler_dump(self):
        """What kube-scheduler holds: nodes with their pods, and its queue; it writes that to its log when asked by a signal."""
        log = self.directory / "logs" / "kube-scheduler.log"
        before = log.stat().st_size
        self._signal(self.state()["pids"]["kube-scheduler"], signal.SIGUSR2)
        time.sleep(2)
        with open(log) as file:
            file.seek(before)
            return file.read()

    def restart(self, name):
        """Starts a killed program again with the same arguments."""
        self.spawn(name, self.started[name][0])

    def state(self):
        return json.loads(self.state_path.read_text()) if self.state_path.exists() else {"pids": {}}

    def wait(self, what, process, log_name, probe, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self.stop(keep=True)
                fail(f"{what} ended with status {process.returncode}; see {self.directory}/logs/{log_name}.log")
            if probe():
                return
            time.sleep(0.1)
        self.stop(keep=True)
        fail(f"{what} was not ready within {seconds} s; see {self.directory}/logs/{log_name}.log")

    def start(self, scheduler_config=None, scheduler=True, controller_manager=True, apiserver_arguments=(), api_address="127.0.0.1", api_port=None):
        """api_address, api_port: where the API server listens; a free port of loopback by default."""
        self.programs = build()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.authority = authority = Authority(self.directory / "pki")
        client_port, peer_port, free_port, manager_port, scheduler_port = free_ports(5)
        api_port = api_port or free_port
        pki = self.directory / "pki"
        server = f"https://{api_address}:{api_port}"
        names = "IP:127.0.0.1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
        authority.issue("apiserver", "/CN=kube-apiserver", names)
        authority.issue("kubelet-client", "/O=system:masters/CN=kubelet-client")
        admin = authority.kubeconfig(self.directory / "kubeconfig", server, "admin", "/O=system:masters/CN=admin")

        etcd = self.spawn("etcd", [
            "--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", f"http://127.0.0.1:{client_port}",
            "--advertise-client-urls", f"http://127.0.0.1:{client_port}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer_port}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer_port}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer_port}"])
        self.wait("etcd", etcd, "etcd", lambda: self._http(f"http://127.0.0.1:{client_port}/health"))

        api = self.spawn("kube-apiserver", [
            "--etcd-servers", f"http://127.0.0.1:{client_port}", "--bind-address", api_address,
            "--secure-port", str(api_port), "--tls-cert-file", str(pki / "apiserver.crt"),
            "--tls-private-key-file", str(pki / "apiserver.key"), "--client-ca-file", str(pki / "ca.crt"),
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", str(pki / "service-account.pub"),
            "--service-account-signing-key-file", str(pki / "service-account.key"),
            "--authorization-mode", "Node,RBAC", "--service-cluster-ip-range", "10.0.0.0/24", "--allow-privileged=true",
            "--kubelet-client-certificate", str(pki / "kubelet-client.crt"),
            "--kubelet-client-key", str(pki / "kubelet-client.key"),
            "--kubelet-certificate-authority", str(pki / "ca.crt"),
            "--kubelet-preferred-address-types", "Hostname", "--enable-admission-plugins", "NodeRestriction",
            "--endpoint-reconciler-type", "none", *apiserver_arguments])
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        self.wait("kube-apiserver", api, "kube-apiserver", lambda: self._http(f"{server}/readyz", context))

        if controller_manager:
            config = authority.kubeconfig(self.directory / "controller-manager.kubeconfig", server,
                                          "controller-manager", "/CN=system:kube-controller-manager")
            manager = self.spawn("kube-controller-manager", [
                "--kubeconfig", str(config), "--bind-address", "127.0.0.1", "--secure-port", str(manager_port),
                "--use-service-account-credentials", "--leader-elect=false",
                "--service-account-private-key-file", str(pki / "service-account.key"),
                "--root-ca-file", str(pki / "ca.crt")])
            self.wait("kube-controller-manager", manager, "kube-controller-manager",
                      lambda: self._api(server, context, "/api/v1/namespaces/default/serviceaccounts/default"))
        if scheduler:
            self.start_scheduler(authority, server, scheduler_port, scheduler_config)

        state = self.state()
        state.update({"server": server, "kubeconfig": str(admin), "programs": str(self.programs)})
        self.state_path.write_text(json.dumps(state, indent=1))

    def start_scheduler(self, authority, server, port, config_path):
        """config_path: a KubeSchedulerConfiguration in JSON; its clientConnection is filled in here."""
        kubeconfig = authority.kubeconfig(self.directory / "scheduler.kubeconfig", server, "scheduler",
                                          "/CN=system:kube-scheduler")
        config = json.loads(Path(config_path).read_text()) if config_path else {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        config.setdefault("clientConnection", {})["kubeconfig"] = str(kubeconfig)
        config["leaderElection"] = {"leaderElect": False}
        path = self.directory / "scheduler-config.json"
        path.write_text(json.dumps(config, indent=1))
        process = self.spawn("kube-scheduler", ["--config", str(path), "--bind-address", "127.0.0.1", "--secure-port",
                                                str(port), "--authentication-skip-lookup"])
        context = ssl._create_unverified_context()  # its serving certificate signs itself
        self.wait("kube-scheduler", process, "kube-scheduler",
                  lambda: self._http(f"https://127.0.0.1:{port}/healthz", context))

    @staticmethod
    def _http(url, context=None):
        try:
            with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _api(self, server, context, path):
        return self._http(server + path, context)

    def stop(self, keep=False):
        """Stops newest first, waits, then kills what stays; removes the directory unless keep."""
        pids = list(self.state()["pids"].items())
        for name, pid in reversed(pids):
            self._signal(pid, signal.SIGTERM)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and self._alive(pid):
                time.sleep(0.05)
            self._signal(pid, signal.SIGKILL)
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _alive(self, pid):
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return Path(f"/proc/{pid}").exists() and self._ours(pid)

    def _ours(self, pid):
        """A pid may have been reused since; only programs of the cache are ever signalled."""
        try:
            return str(cache_root().resolve()) in os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return False

    def _signal(self, pid, number):
        if self._ours(pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="build etcd and Kubernetes, print the folder that holds them")
    start = verbs.add_parser("start", help="start a cluster, print KUBECONFIG=, DIR= and PATH_ADD=")
    start.add_argument("--dir", help="directory of the cluster (default: a new temporary one)")
    start.add_argument("--scheduler-config", help="KubeSchedulerConfiguration as JSON")
    start.add_argument("--no-scheduler", action="store_true")
    start.add_argument("--no-controller-manager", action="store_true")
    stop = verbs.add_parser("stop", help="stop the cluster of this directory and remove it")
    stop.add_argument("dir")
    stop.add_argument("--keep", action="store_true", help="leave the directory with its logs")
    arguments = parser.parse_args()

    if arguments.verb == "build":
        print(build())
    elif arguments.verb == "start":
        directory = arguments.dir or tempfile.mkdtemp(prefix="sluice-kube-")
        cluster = Cluster(directory)
        cluster.start(arguments.scheduler_config, not arguments.no_scheduler, not arguments.no_controller_manager)
        print(f"KUBECONFIG={directory}/kubeconfig\nDIR={directory}\nPATH_ADD={cluster.programs}")
    else:
        if not (Path(arguments.dir) / "state.json").exists():
            fail(f"{arguments.dir} holds no cluster (no state.json in it)")
        Cluster(arguments.dir).stop(arguments.keep)


if __name__ == "__main__":
    main()
