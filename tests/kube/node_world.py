"""A world of its own for tests with real nodes: private mounts, processes, network and host names, gone when the test ends.

    import node_world; node_world.enter()      # first thing in a test's main: runs the rest of the test inside

Real kubelets and containerd leave much behind when a test dies: shims, mounts, network devices, cgroups. So the test runs
as a child in mount, process and network namespaces of its own: when it ends, in whatever way, the kernel stops every
process and drops every mount and device. What lies outside of namespaces, the cgroups and the folder, the parent
removes; leftovers of parents that were killed too are swept by the next run. Where the machine does not allow this, the
test is skipped (exit 77) with the reason.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "sluice-nodes"
SERVICE_ADDRESS = "10.0.0.1"  # of the Service "kubernetes"
INSIDE = "SLUICE_NODE_WORLD"


def folder():
    """The world's folder; only inside."""
    return Path(os.environ[INSIDE])


def cgroup_name():
    """The cgroup, relative to each hierarchy's root, under which every node's processes live."""
    return folder().name


def hierarchies():
    """The roots of the cgroup hierarchies that have controllers: one with v2, one per controller with v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return sorted(path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink() and path.name != "unified")


def reason_not_possible():
    """Why this machine cannot run real nodes, or None."""
    if os.geteuid() != 0:
        return "real nodes need root"
    for program, package in (("runc", "runc"), ("ip", "iproute2"), ("nsenter", "util-linux"), ("busybox", "busybox-static"),
                             ("musl-gcc", "musl-tools")):
        if shutil.which(program) is None:
            return f"real nodes need the program '{program}' (package {package}); script/install-deps installs it"
    if not Path("/usr/lib/cni/bridge").exists():
        return "real nodes need /usr/lib/cni/bridge (package containernetworking-plugins); script/install-deps installs it"
    trial = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--propagation", "private", "sh", "-c",
                            "set -e; ip link set lo up; ip link add b0 type bridge; ip link add v0 type veth peer name v1;"
                            "mkdir -p /tmp && mount -t tmpfs none /tmp && mkdir /tmp/a /tmp/b /tmp/c /tmp/d &&"
                            "mount -t overlay -o lowerdir=/tmp/a,upperdir=/tmp/b,workdir=/tmp/c none /tmp/d"],
                           capture_output=True, text=True)
    if trial.returncode != 0:
        return f"this machine does not allow namespaces with network devices and overlay mounts: {trial.stderr.strip()}"
    for root in hierarchies():
        probe = root / f"{PREFIX}-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"cgroups cannot be made in {root}: {error.strerror}"
    return None


def enter():
    """Returns inside a new world; in the parent it never returns but ends with the child's status."""
    if INSIDE in os.environ:
        set_up()
        return
    reason = reason_not_possible()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    sweep()
    place = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
    status = 1
    # The first process of the process namespace adopts and reaps orphans, which Python does not.
    child = subprocess.Popen(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc",
                              "--propagation", "private", "bash", "-c", 'trap "kill -TERM \\$p" TERM INT; "$@" & p=$!; wait $p; wait $p',
                              "bash", sys.executable, *sys.argv], env={**os.environ, INSIDE: str(place)})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.kill())
    try:
        status = child.wait()
    finally:
        remove_cgroups(place.name)
        if status not in (0, 77):
            keep_logs(place)
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(status if status >= 0 else 128 - status)


def run_cases(wanted, cases, after_wrong=lambda: None):
    """Runs methods of `cases` by name, a line for each; after one that is wrong the others still run."""
    wrong = 0
    for case in wanted:
        began = time.monotonic()
        try:
            print(f"ok    {getattr(cases, case)()} ({time.monotonic() - began:.0f} s)", flush=True)
        except (AssertionError, RuntimeError, OSError) as error:
            print(f"WRONG {case}: {str(error)[:1500]}", flush=True)
            wrong += 1
            after_wrong()
    assert wrong == 0, f"{wrong} of {len(wanted)} cases"


def keep_logs(place):
    """The logs of a run that failed, without images and stores, where the next failure replaces them."""
    target = Path(tempfile.gettempdir()) / f"{PREFIX}-last-failure"
    shutil.rmtree(target, ignore_errors=True)
    for log in place.glob("**/*.log"):
        if log.is_symlink() or not log.is_file():
            continue
        copy = target / log.relative_to(place)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, copy)
    print(f"logs: {target}", file=sys.stderr)


def sweep():
    """Removes what runs left behind whose parent is gone."""
    names = {path.name for root in {*hierarchies(), CGROUPS / "unified"} for path in root.glob(f"{PREFIX}-*")}
    names |= {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*")}
    for name in names:
        owner = name[len(PREFIX) + 1:].split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove_cgroups(name)
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


def processes_in(name):
    """Every process under a cgroup, as pids of this process namespace."""
    found = set()
    top = hierarchies()[0] / name
    for listed in [top / "cgroup.procs", *top.glob("**/cgroup.procs")]:
        try:
            found.update(int(pid) for pid in listed.read_text().split())
        except OSError:
            pass  # gone meanwhile
    return found - {0}


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def remove_cgroups(name, seconds=10):
    """Removes a cgroup and all below it; its processes are dead or dying."""
    deadline = time.monotonic() + seconds
    while True:
        left = False
        for root in {*hierarchies(), CGROUPS / "unified"}:  # beside v1 hierarchies runc makes a cgroup in v2's too
            for path, _, _ in os.walk(root / name, topdown=False):
                try:
                    os.rmdir(path)
                except FileNotFoundError:
                    pass
                except OSError:
                    left = True
        if not left or time.monotonic() > deadline:
            return
        time.sleep(0.1)


def make_cgroup(name):
    """The same cgroup in every hierarchy; cpuset (v1) is empty until it is given processors."""
    for root in hierarchies():
        here = root
        enable_controllers(here)
        for part in Path(name).parts:
            parent, here = here, here / part
            here.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if root != CGROUPS and (here / setting).exists():
                    (here / setting).write_text((parent / setting).read_text())
            if here != root / name:
                enable_controllers(here)


def enable_controllers(path):
    """v2: children get every controller that this cgroup has."""
    if path / "cgroup.subtree_control" and (path / "cgroup.controllers").exists() and (path / "cgroup.subtree_control").exists():
        wanted = " ".join(f"+{name}" for name in (path / "cgroup.controllers").read_text().split())
        try:
            (path / "cgroup.subtree_control").write_text(wanted)
        except OSError:
            # A cgroup with processes cannot pass its controllers on, which is what a container's root is; they move down.
            aside = path / "init"
            aside.mkdir(exist_ok=True)
            for pid in (path / "cgroup.procs").read_text().split():
                try:
                    (aside / "cgroup.procs").write_text(pid)
                except OSError:
                    pass
            (path / "cgroup.subtree_control").write_text(wanted)


def enter_cgroup(name):
    """Moves the calling process; between fork and exec."""
    for root in hierarchies():
        (root / name / "cgroup.procs").write_text("0")


def run(*arguments):
    result = subprocess.run([str(one) for one in arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {result.stderr.strip()}")
    return result.stdout


def set_up():
    """Inside: loopback with the service address, forwarding between nodes, host names of our own."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    hosts = folder() / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    run("mount", "--bind", hosts, "/etc/hosts")
    make_cgroup(cgroup_name())
    os.environ["TMPDIR"] = str(folder())
    tempfile.tempdir = None


def has_device(name):
    return subprocess.run(["ip", "link", "show", name], capture_output=True).returncode == 0


def add_host(address, name):
    with open(folder() / "hosts", "a", encoding="ascii") as hosts:
        hosts.write(f"{address} {name}\n")
