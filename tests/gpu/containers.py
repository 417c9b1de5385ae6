"""Containers on the measured card, for the time of one check: gpu_node keeps pages and turns, programs enter them."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time


class Containers:
    """`with Containers(context, a=(limit_mib, permille), ...) as node`; 0 means none."""

    def __init__(self, context, estimate_mib=None, **grants):
        self.context = context
        self.estimate_mib = estimate_mib or context.context_mib
        self.grants = grants
        self.lines = []

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-gpu-"))
        self.folder.chmod(0o755)
        words = [f"{name}:{limit}:{permille}" for name, (limit, permille) in self.grants.items()]
        self.process = subprocess.Popen(
            [str(self.context.build.programs / "gpu_node"), "hold", "--state", str(self.folder), "--nvml",
             self.context.machine.nvml, "--card", str(self.context.machine.card), "--estimate-mib",
             str(self.estimate_mib), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        if not first:
            raise RuntimeError("gpu_node did not start")
        self.lines.append(json.loads(first))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.reader.join(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, name, command):
        return [str(self.context.build.programs / "gpu_node"), "enter", "--state", str(self.folder / name), "--cuda",
                self.context.machine.cuda, "--nvml", self.context.machine.nvml, "--guest", str(self.context.build.guest),
                "--way", self.context.way, "--", *map(str, command)]

    def start(self, name, command, **options):
        return subprocess.Popen(self.command(name, command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def run(self, name, command, timeout=300):
        return subprocess.run(self.command(name, command), capture_output=True, text=True, timeout=timeout)

    def latest(self, name):
        """The guests' own figures of a container, after at least one more report."""
        seen = len(self.lines)
        end = time.monotonic() + 5
        while len(self.lines) < seen + 2 and time.monotonic() < end:
            time.sleep(0.02)
        return self.lines[-1]["containers"][name]

    def busy_percent(self, name, from_ns, to_ns, window_ns=None):
        """The guests' settled busy time in percent between two times of CLOCK_MONOTONIC; a list with window_ns."""
        points = [(line["now_ns"], line["containers"][name]["busy_ns"]) for line in self.lines
                  if from_ns <= line["now_ns"] <= to_ns]
        if len(points) < 2:
            return [] if window_ns else None
        if window_ns is None:
            return 100.0 * (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
        shares, start = [], points[0]
        for point in points:
            if point[0] - start[0] >= window_ns:
                shares.append(100.0 * (point[1] - start[1]) / (point[0] - start[0]))
                start = point
        return shares
