"""Where a container's card is written down, read from every place that has a say: the signed record on the pod, the
kubelet's own record of device ids and answers, the CDI spec on the node, the running container's environment and mounts,
and the card, which knows the processes that use it. All have to agree.
"""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import node_world

SOURCE = Path(__file__).resolve().parent.parent.parent
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
DEVICE = re.compile(rb"sluice\.dev/grant=(g[0-9a-f]{16})")
GRANT_MOUNT = "/run/sluice/container/grant"


def allocation(pod):
    """The scheduler's record on the pod, parsed; None without one."""
    text = pod["metadata"].get("annotations", {}).get("sluice.dev/allocation")
    return json.loads(text) if text else None


def recorded_cards(pod):
    """UUIDs of the pod's cards by the scheduler's record."""
    record = allocation(pod)
    return sorted(card["uuid"] for card in record["cards"]) if record else []


def kubelet_devices(node):
    """By the kubelet's checkpoint: {(pod uid, container): set of CDI devices that its answers name}."""
    entries = json.loads(node.path(CHECKPOINT).read_text())["Data"]["PodDeviceEntries"] or []
    found = {}
    for entry in entries:
        answer = base64.b64decode(entry["AllocResp"] or "")
        devices = found.setdefault((entry["PodUID"], entry["ContainerName"]), set())
        devices.update(name.decode() for name in DEVICE.findall(answer))
    return found


def kubelet_ids(node):
    """By the kubelet's checkpoint: {(pod uid, container, resource): its device ids, sorted}."""
    entries = json.loads(node.path(CHECKPOINT).read_text())["Data"]["PodDeviceEntries"] or []
    return {(entry["PodUID"], entry["ContainerName"], entry["ResourceName"]): sorted(sum(entry["DeviceIDs"].values(), []))
            for entry in entries}


def make_proto(folder):
    """The Python modules of the kubelet's interfaces, for neighbour.py. Ends the test as skipped where that cannot run."""
    if subprocess.run(["/usr/bin/python3", "-c", "import grpc, google.protobuf"], capture_output=True).returncode != 0:
        print("skipped: asking the kubelet needs python3-grpcio (script/install-deps installs it)")
        sys.exit(77)
    folder.mkdir()
    node_world.run("protoc", "-I", SOURCE / "proto", f"--python_out={folder}", "kubelet/deviceplugin_v1beta1.proto", "kubelet/podresources_v1.proto")
    return folder


def listed_ids(node, proto):
    """By the kubelet's PodResources List: {(namespace, pod, container, resource): its device ids, sorted}."""
    text = node.run("/usr/bin/python3", SOURCE / "tests/kube/neighbour.py", proto, "list")
    found = {}
    for *key, ids in json.loads(text):
        found.setdefault(tuple(key), []).extend(ids)
    return {key: sorted(ids) for key, ids in found.items()}


def cdi_spec(node, device):
    """The container edits that the runtime reads for a device g<16 hex digits>."""
    spec = json.loads(node.path(f"/run/cdi/sluice.dev-grant-{device[1:]}.json").read_text())
    return next(one["containerEdits"] for one in spec["devices"] if one["name"] == device)


def variables(edits):
    return dict(one.split("=", 1) for one in edits.get("env", []))


def processes_of(node, pod_uid):
    """Pids of a pod's processes, by its cgroup, the pause container's among them."""
    top = node_world.hierarchies()[0] / node.cgroup / "kubepods"
    pids = []
    for folder in [*top.glob(f"pod{pod_uid}/*"), *top.glob(f"*/pod{pod_uid}/*")]:
        if (folder / "cgroup.procs").exists():
            pids += [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return pids


def environment_of(pid):
    text = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(one.decode(errors="replace").split("=", 1) for one in text if b"=" in one)


def grant_of(pid):
    """The grant directory that a process has before it, as its path on the file system it lies on; None without one."""
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        parts = line.split()
        if parts[4] == GRANT_MOUNT:
            return parts[3]
    return None


def cards_in_use(node):
    """What the cards say of who uses them: {pid: set of UUIDs}."""
    text = node.run("env", "LD_LIBRARY_PATH=/opt/sluice-sim", "SLUICE_SIM_DIR=/opt/sluice-sim/state", "/opt/sluice-sim/nvidia-smi",
                    "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
    found = {}
    for line in text.splitlines():
        if "," in line:
            pid, uuid = (part.strip() for part in line.split(","))
            found.setdefault(int(pid), set()).add(uuid)
    return found


def check_running(node, pod, container="c", uses_card=True, devices=None, in_use=None):
    """One running pod with one container that asks: every place names the same cards. Returns them."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    recorded = recorded_cards(pod)
    assert recorded, f"{name} carries no record"
    mine = (devices if devices is not None else kubelet_devices(node)).get((uid, container), set())
    assert len(mine) == 1, f"{name}: the kubelet has given {container} the devices {mine}"
    edits = cdi_spec(node, next(iter(mine)))
    assert sorted(variables(edits).get("NVIDIA_VISIBLE_DEVICES", "").split(",")) == recorded, f"{name}: CDI names other cards than {recorded}"
    pids = [pid for pid in processes_of(node, uid) if "NVIDIA_VISIBLE_DEVICES" in environment_of(pid)]
    assert pids, f"{name}: no process with NVIDIA_VISIBLE_DEVICES"
    grants = set()
    for pid in pids:
        seen = sorted(environment_of(pid)["NVIDIA_VISIBLE_DEVICES"].split(","))
        assert seen == recorded, f"{name}: the container sees {seen}, recorded are {recorded}"
        grants.add(grant_of(pid))
    source = next(mount["hostPath"] for mount in edits["mounts"] if mount["containerPath"] == GRANT_MOUNT)
    assert len(grants) == 1 and source.endswith(next(iter(grants))), f"{name}: mounted is {grants}, by CDI {source}"
    if uses_card:
        used = set()
        for pid in pids:
            used |= (in_use if in_use is not None else cards_in_use(node)).get(pid, set())
        assert sorted(used) == recorded, f"{name}: its processes are on cards {used}, recorded are {recorded}"
    return recorded


def left_over(node):
    """What a node without any pod with a card must not have: grants, CDI specs, slots."""
    found = []
    for place in ("/run/sluice/grants", "/run/cdi", "/var/lib/sluice/slots"):
        if node.path(place).exists():
            found += [str(one) for one in node.path(place).iterdir()]
    return found


def wait_nothing_left(cluster, node, seconds=150):
    """What was prepared for a pod that the kubelet then turned away, or that was deleted before it began, is kept for two
    minutes: nobody says that it will not come."""
    try:
        cluster.wait_for(lambda: not left_over(node), seconds, "nothing left")
    except AssertionError:
        raise AssertionError(f"left on the node: {left_over(node)}") from None
