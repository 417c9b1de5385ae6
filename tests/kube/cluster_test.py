#!/usr/bin/env python3
"""The harness itself: two control planes side by side, each started and stopped by one command, with nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

from cluster import KUBERNETES_VERSION

HARNESS = Path(__file__).resolve().parent / "cluster.py"


def command(*arguments, status=0):
    result = subprocess.run([sys.executable, HARNESS, *arguments], capture_output=True, text=True)
    assert result.returncode == status, f"{arguments}: {result.returncode} {result.stderr}"
    return result


def start():
    return dict(line.split("=", 1) for line in command("start").stdout.splitlines())


def kubectl(cluster, *arguments):
    result = subprocess.run([f"{cluster['PATH_ADD']}/kubectl", "--kubeconfig", cluster["KUBECONFIG"], *arguments],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def running(directory):
    """Processes that name the directory in their arguments."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if directory in path.read_bytes().decode(errors="replace"):
                out.append(path.parent.name)
        except OSError:
            pass
    return out


def main():
    clusters = [start(), start()]
    try:
        assert clusters[0]["DIR"] != clusters[1]["DIR"]
        for number, cluster in enumerate(clusters):
            version = json.loads(kubectl(cluster, "version", "-o", "json"))["serverVersion"]["gitVersion"]
            assert version == KUBERNETES_VERSION, version
            kubectl(cluster, "create", "namespace", f"only-{number}")
            assert len(running(cluster["DIR"])) == 4, "etcd, API server, controller manager, scheduler"
        for number, cluster in enumerate(clusters):
            names = kubectl(cluster, "get", "namespaces", "-o", "name")
            assert f"only-{number}" in names and f"only-{1 - number}" not in names, names
    finally:
        for cluster in clusters:
            command("stop", cluster["DIR"])
    for cluster in clusters:
        assert not running(cluster["DIR"]) and not Path(cluster["DIR"]).exists(), cluster["DIR"]
    said = command("stop", clusters[0]["DIR"], status=1).stderr
    assert "holds no cluster" in said, said
    print("ok    two clusters side by side, and nothing left of either")


if __name__ == "__main__":
    main()
