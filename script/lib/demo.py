"""Runs the demonstration over a finished build; script/demo installs, builds and calls this.

Two nodes, one Job each, the same training benchmark at the same time. While it runs, nvidia-smi is asked inside both
pods once a second; afterwards the cards' own logs say what really happened, and every claim is checked against them.
Whatever happens, also Ctrl-C, everything that was started is stopped and removed, unless --keep says otherwise.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import demo_check
from demo_check import SECOND
from demo_node import CARD, CARD_MIB, DemoError, Node, Programs

SOURCE = pathlib.Path(__file__).resolve().parents[2]
WARM_UP_SECONDS = 3
START_PATIENCE_SECONDS = 30
KEEP_SECONDS = 24 * 3600


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu-mem", type=int, default=10)
    parser.add_argument("--gpu-core", type=int, default=30)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def write_manifest(name, folder, arguments):
    """The manifest of examples/ with the asked sizes, and with a run long enough to be watched."""
    text = (SOURCE / "examples" / name).read_text()
    seconds = KEEP_SECONDS if arguments.keep else arguments.seconds + START_PATIENCE_SECONDS + 60
    for pattern, value in ((r"(aliyun\.com/gpu-mem: *)\"?\d+\"?", arguments.gpu_mem),
                           (r"(aliyun\.com/gpu-core\.percentage: *)\"?\d+\"?", arguments.gpu_core),
                           (r"(name: SECONDS_TO_RUN\s+value: *)\"\d+\"", f'"{seconds}"')):
        text = re.sub(pattern, lambda match, value=value: f"{match[1]}{value}", text)
    path = folder / name
    path.write_text(text)
    return path


class Demo:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-demo-"))
        self.folder.chmod(0o755)
        programs = Programs(arguments.build.resolve())
        self.exclusive = Node("node-a", self.folder, programs)
        self.shared = Node("node-b", self.folder, programs)
        self.nodes = (self.exclusive, self.shared)
        self.readings = {node: [] for node in self.nodes}
        self.from_ns = 0
        self.to_ns = 0

    def start(self):
        say(f"two nodes, each with a simulated {CARD} ({CARD_MIB} MiB), in {self.folder}")
        for node in self.nodes:
            node.create_card()
            node.start_agent()
        share = f"{self.arguments.gpu_mem} GiB and {self.arguments.gpu_core} % of a card"
        say(f"starting the same Job on both: examples/exclusive.yaml (a whole card), examples/shared.yaml ({share})")
        self.exclusive.start_job(write_manifest("exclusive.yaml", self.folder, self.arguments))
        self.shared.start_job(write_manifest("shared.yaml", self.folder, self.arguments))
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        for node in self.nodes:
            while not self.works(node):
                node.check_job()
                if time.monotonic() > deadline:
                    raise DemoError(f"node {node.name}: the Job has not used its card for {START_PATIENCE_SECONDS} s: "
                                    f"{node.tail('job.err') or 'it said nothing'}")
                time.sleep(0.2)
        time.sleep(WARM_UP_SECONDS)

    def works(self, node):
        now = time.monotonic_ns()
        return node.busy_log(now - SECOND).percent(now - SECOND, now) > 1

    def watch(self):
        """Asks nvidia-smi in both pods once a second for as long as is measured."""
        self.from_ns = time.monotonic_ns()
        self.to_ns = self.from_ns + self.arguments.seconds * SECOND
        tick = self.from_ns + SECOND
        while tick < self.to_ns:
            time.sleep(max(0, (tick - time.monotonic_ns()) / SECOND))
            for node in self.nodes:
                self.readings[node].append(node.read_nvidia_smi())
            self.progress()
            tick += SECOND
        time.sleep(max(0, (self.to_ns - time.monotonic_ns()) / SECOND))

    def progress(self):
        seconds = (time.monotonic_ns() - self.from_ns) // SECOND
        parts = [f"{node.name} {self.readings[node][-1].utilisation_percent:3d} %" for node in self.nodes]
        line = f"[{seconds:3d}/{self.arguments.seconds} s] nvidia-smi: {', '.join(parts)}"
        if sys.stdout.isatty():
            print(f"\r{line}", end="", flush=True)
        elif seconds % 10 == 0:
            print(line, flush=True)

    def show(self):
        if sys.stdout.isatty():
            print()
        for node, what in ((self.exclusive, "exclusive pod"), (self.shared, "shared pod")):
            print(f"\n--- nvidia-smi in the {what} ({node.name})\n{node.exec_in_pod('nvidia-smi').rstrip()}")
        for node in self.nodes:
            print(f"\n--- sluice ps on {node.name}\n{node.call('sluice', 'ps').rstrip()}")
        print(flush=True)

    def judge(self):
        """Checks all claims, writes the plots; True when every claim holds."""
        logs = {node: node.busy_log() for node in self.nodes}
        exclusive = demo_check.judge_exclusive(logs[self.exclusive], self.readings[self.exclusive], self.from_ns,
                                               self.to_ns, CARD_MIB)
        alone = logs[self.exclusive].percent(self.from_ns, self.to_ns)
        # A share above what the benchmark uses alone is not a limit; then it has to get what it uses alone.
        core = min(self.arguments.gpu_core, alone)
        shared = demo_check.judge_shared(logs[self.shared], self.readings[self.shared], self.from_ns, self.to_ns, core,
                                         CARD_MIB, self.arguments.gpu_mem)
        self.plot(logs)
        print("\nby the cards' own logs:")
        for claim in exclusive + shared:
            print(f"  {'holds ' if claim.holds else 'FAILED'}  {claim.text}")
        holds = all(claim.holds for claim in exclusive + shared)
        busy, processors = os.getloadavg()[0], os.cpu_count()
        if not holds and busy > processors + 1:
            print(f"  {busy:.0f} processes want this machine's {processors} processors: the programs of both pods come late to their "
                  "cards. Run it when nothing else does.")
        return holds

    def plot(self, logs):
        output = self.arguments.output
        output.mkdir(parents=True, exist_ok=True)
        table = output / "utilisation.csv"
        table.write_text(self.csv(logs))
        svg, png = output / "utilisation.svg", output / "utilisation.png"
        with open(table, "rb") as source, open(svg, "wb") as target:
            drawn = subprocess.run(
                [Programs(self.arguments.build.resolve()).path("plot_csv"), "--title",
                 f"The same training benchmark with a whole {CARD} and with {self.arguments.gpu_core} % of one",
                 "--x-label", "seconds", "--y-label", "card busy, % of the last second", "--y-least", "0", "--y-most",
                 "100", "--rule", f"{self.arguments.gpu_core}=asked: {self.arguments.gpu_core} %"],
                stdin=source, stdout=target, stderr=subprocess.PIPE, text=True, check=False)
        if drawn.returncode != 0:
            raise DemoError(f"drawing the plot failed: {drawn.stderr.strip()}")
        if shutil.which("rsvg-convert") is None:
            raise DemoError("rsvg-convert is missing, so no PNG was made; script/install-deps installs it")
        made = subprocess.run(["rsvg-convert", "-o", png, svg], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise DemoError(f"rsvg-convert failed: {made.stderr.strip()}")
        print(f"plots: {svg} {png}")

    def csv(self, logs):
        lines = ["second,exclusive pod (card's log),shared pod (card's log),exclusive pod (nvidia-smi),"
                 "shared pod (nvidia-smi)"]
        step = SECOND // 4
        for t in range(self.from_ns, self.to_ns + 1, step):
            values = [logs[node].percent(t - SECOND, t) for node in self.nodes]
            lines.append(f"{(t - self.from_ns) / SECOND:.2f}," + ",".join(f"{value:.2f}" for value in values))
        for column, node in enumerate(self.nodes):
            for reading in self.readings[node]:
                second = (reading.answered_ns - self.from_ns) / SECOND
                lines.append(f"{second:.2f}" + "," * (3 + column) + str(reading.utilisation_percent))
        return "\n".join(lines) + "\n"

    def keep(self):
        script = self.folder / "stop"
        jobs = " ".join(f"-{node.job.pid}" for node in self.nodes)
        agents = " ".join(f"-{node.agent.pid}" for node in self.nodes)
        script.write_text("#!/bin/sh\n# Ends what the demonstration left running and removes its folder: Jobs, then, once "
                          "their grants are taken\n# back, agents.\n"
                          f"kill -- {jobs} 2>/dev/null\nsleep 3\nkill -- {agents} 2>/dev/null\nsleep 1\n"
                          f"grep -o '{self.folder}/[^ ]*' /proc/mounts | xargs -r umount\nrm -rf {self.folder}\n")
        script.chmod(0o755)
        print("\nEverything keeps running. To look:")
        for node in self.nodes:
            environment = f"SLUICE_RUN_DIR={node.run_directory}"
            print(f"  {environment} {self.arguments.build}/bin/sluice ps      (also: top, cards)")
            print(f"  {' '.join(node.pod_command('env', f'LD_LIBRARY_PATH={node.driver}', f'SLUICE_SIM_DIR={node.cards}'))}"
                  f" {self.arguments.build.resolve()}/bin/nvidia-smi")
        print(f"To change the share: SLUICE_RUN_DIR={self.shared.run_directory} {self.arguments.build}/bin/sluice set "
              f"GRANT --gpu-core 55\nTo stop: {script}")

    def stop(self):
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Interrupted(Exception):
    """A signal asked the demonstration to end."""


def interrupt(number, _frame):
    raise Interrupted(signal.Signals(number).name)


def say(text):
    print(f"demo: {text}", flush=True)


def main():
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    demo, keep = None, False
    try:
        if os.path.exists("/dev/nvidiactl"):
            say("this machine has a card; the demonstration still uses simulated ones, whose logs it checks against")
        demo = Demo(arguments)
        demo.start()
        say(f"measuring for {arguments.seconds} s")
        demo.watch()
        demo.show()
        holds = demo.judge()
        keep = arguments.keep
        if keep:
            demo.keep()
        return 0 if holds else 1
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 3
    except Interrupted as name:
        print(f"\ndemo: stopped by {name}; cleaning up", file=sys.stderr)
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if demo is not None and not keep:
            demo.stop()


if __name__ == "__main__":
    sys.exit(main())
