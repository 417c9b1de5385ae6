"""One "node" of the demonstration: a simulated card in a folder of its own, an agent that serves it from a run directory
of its own, and one Job started through `sluice run -f`. What a pod sees is asked from inside it, as kubectl exec would.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import demo_check

CARD = "V100-SXM2-32GB"
CARD_MIB = 32510
RELEASE_PATIENCE_SECONDS = 5  # the card frees a dead process's memory within 2 s


class DemoError(Exception):
    """One sentence for the user: what did not work and what to look at."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """Where the build put things."""
    build: pathlib.Path

    def path(self, name):
        path = self.build / "bin" / name
        if not path.exists():
            raise DemoError(f"{path} is missing; build it (script/demo does so unless --no-build is given)")
        return str(path)


class Node:
    def __init__(self, name, folder, programs):
        self.name = name
        self.programs = programs
        self.folder = pathlib.Path(folder) / name
        self.driver = self.folder / "driver"
        self.run_directory = self.folder / "run"
        self.cards = self.folder / "cards"
        self.card = self.cards / "card0"
        self.epoch_ns = None
        self.agent = None
        self.job = None

    def environment(self):
        path = f"{self.programs.build}/bin/workloads:{self.programs.build}/bin:{os.environ.get('PATH', '')}"
        return dict(os.environ, PATH=path, LD_LIBRARY_PATH=str(self.driver), SLUICE_SIM_DIR=str(self.cards),
                    SLUICE_RUN_DIR=str(self.run_directory))

    def call(self, program, *arguments, check=True):
        """Runs one of our programs on this node and returns what it printed."""
        result = subprocess.run([self.programs.path(program), *map(str, arguments)], env=self.environment(),
                                capture_output=True, text=True, check=False)
        if check and result.returncode != 0:
            raise DemoError(f"node {self.name}: {program} {' '.join(map(str, arguments))} ended with "
                            f"{result.returncode}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout

    def create_card(self):
        self.driver.mkdir(parents=True)
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            source = self.programs.build / "sim" / library
            if not source.exists():
                raise DemoError(f"{source} is missing; build it (script/demo does so unless --no-build is given)")
            shutil.copy(source, self.driver / library)
        (self.driver / "libcuda.so").symlink_to("libcuda.so.1")
        self.call("sluice-sim", "create", self.cards, "--card", CARD, "--seed", ord(self.name[-1]))

    def start_agent(self):
        self.run_directory.mkdir(mode=0o755)
        with open(self.folder / "agent.log", "wb") as log:
            self.agent = subprocess.Popen(
                [self.programs.path("sluice-agent"), "--run-dir", self.run_directory, "--driver-dir", self.driver,
                 "--idle-seconds", "0"],
                env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 15
        while not (self.run_directory / "agent.sock").exists():
            if self.agent.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"node {self.name}: the agent did not come up: {self.tail('agent.log')}")
            time.sleep(0.05)

    def start_job(self, manifest):
        with open(self.folder / "job.out", "wb") as out, open(self.folder / "job.err", "wb") as err:
            self.job = subprocess.Popen([self.programs.path("sluice"), "run", "-f", manifest], env=self.environment(),
                                        stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)

    def check_job(self):
        """Raises when the Job has ended, with what it said."""
        if self.job.poll() is not None:
            raise DemoError(f"node {self.name}: the Job ended early with status {self.job.returncode}: "
                            f"{self.tail('job.err') or self.tail('job.out') or 'it said nothing'}")

    def pod_pid(self):
        """The process of the Job's command: the child of `sluice run`."""
        self.check_job()
        children = pathlib.Path(f"/proc/{self.job.pid}/task/{self.job.pid}/children").read_text().split()
        if not children:
            raise DemoError(f"node {self.name}: sluice run has not started the Job's command")
        return int(children[0])

    def pod_command(self, *command):
        """The command line that runs something inside the pod, as kubectl exec does in a cluster."""
        pid = self.pod_pid()
        options = ["--mount"] if os.geteuid() == 0 else ["--user", "--preserve-credentials", "--mount"]
        return ["nsenter", "--target", str(pid), *options, "--", *command]

    def exec_in_pod(self, program, *arguments):
        pid = self.pod_pid()
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        environment = dict(item.split(b"=", 1) for item in variables if b"=" in item)
        result = subprocess.run(self.pod_command(self.programs.path(program), *arguments), env=environment,
                                capture_output=True, text=True, check=False)
        if result.returncode != 0:
            self.check_job()
            raise DemoError(f"node {self.name}: {program} in the pod ended with {result.returncode}: "
                            f"{result.stderr.strip() or result.stdout.strip()}")
        return result.stdout

    def read_nvidia_smi(self):
        asked = time.monotonic_ns()
        text = self.exec_in_pod("nvidia-smi", "--query-gpu=utilization.gpu,memory.total,memory.used",
                                "--format=csv,noheader,nounits")
        answered = time.monotonic_ns()
        match = re.match(r"\s*(\d+),\s*(\d+),\s*(\d+)\s*$", text)
        if not match:
            raise DemoError(f"node {self.name}: nvidia-smi answered '{text.strip()}', expected three numbers")
        return demo_check.Reading(asked, answered, *(int(group) for group in match.groups()))

    def busy_log(self, since_ns=None):
        """The card's own log, all contexts on it together, from a host time on (None: from its beginning)."""
        if self.epoch_ns is None:
            self.epoch_ns = self.read_log("--window", 1000)["epoch_ns"]
        from_ms = 0 if since_ns is None else max(0, (since_ns - self.epoch_ns) // demo_check.MS)
        return parse_log(self.read_log("--window", 1, "--from", from_ms))

    def read_log(self, *arguments):
        return json.loads(self.call("sluice-sim", "log", self.card, *arguments, "--json"))

    def tail(self, name):
        path = self.folder / name
        text = path.read_text(errors="replace").strip() if path.exists() else ""
        return text[-600:]

    def stop(self):
        """Ends the Job, waits until the agent has taken its grant back, ends the agent. What does not end in time is
        killed; pages that a killed agent leaves mounted are unmounted."""
        end(self.job)
        deadline = time.monotonic() + RELEASE_PATIENCE_SECONDS
        while self.agent is not None and self.agent.poll() is None and time.monotonic() < deadline:
            if not any((self.run_directory / "grants").glob("*")):
                break
            time.sleep(0.05)
        end(self.agent)
        for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
            mounted = line.split()[1]
            if mounted.startswith(f"{self.folder}/"):
                subprocess.run(["umount", mounted], capture_output=True, check=False)


def end(process):
    """SIGTERM for a process and its group, SIGKILL after two seconds."""
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(2)
            return
        except subprocess.TimeoutExpired:
            continue


def parse_log(log):
    """A BusyLog from what `sluice-sim log --window 1 --json` prints. The card as a whole comes first in each window; its
    clock counts from epoch_ns of the host's."""
    windows = log["windows"]
    occupied = [window["processes"][0]["occupied_percent"] / 100 * (window["to_ns"] - window["from_ns"])
                for window in windows]
    first = windows[0]["from_ns"] if windows else log["now_ns"]
    return demo_check.BusyLog(log["epoch_ns"] + first, occupied)
