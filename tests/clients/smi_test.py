"""nvidia-smi on simulated cards: its views, its choice of cards, its errors; figures against NVML by another program."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(os.environ["SLUICE_BUILD"])
SMI = str(BUILD / "bin" / "nvidia-smi")


def run(env, *arguments, code=0, timeout=20):
    done = subprocess.run([SMI, *arguments], env=env, capture_output=True, text=True, timeout=timeout)
    if done.returncode != code:
        sys.exit(f"nvidia-smi {' '.join(arguments)}: exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def expect(text, pattern):
    if not re.search(pattern, text, re.M):
        sys.exit(f"no /{pattern}/ in:\n{text}")


def main():
    with tempfile.TemporaryDirectory() as cards:
        env = dict(os.environ, SLUICE_SIM_DIR=cards, LD_LIBRARY_PATH=str(BUILD / "sim"))
        expect(run(env, "-L", code=9), r"Driver Not Loaded.*sluice-sim create")
        subprocess.run([str(BUILD / "bin" / "sluice-sim"), "create", cards, "--card", "V100-SXM2-32GB", "--count", "2"],
                       check=True, stdout=subprocess.DEVNULL)
        table = run(env)
        expect(table, r"^\|\s+0  Tesla V100-SXM2-32GB\s+On  \|\s+0000")
        expect(table, r"0MiB /  32510MiB \|\s+0%\s+Default \|$")
        expect(table, r"No running processes found")
        widths = {len(line) for line in table.splitlines() if line and line[0] in "|+"}
        if widths != {91}:
            sys.exit(f"lines of the table are {sorted(widths)} characters wide, expected 91")
        expect(run(env, "-L"), r"^GPU 1: Tesla V100-SXM2-32GB \(UUID: GPU-[0-9a-f-]{36}\)$")
        details = run(env, "-q")
        expect(details, r"^Attached GPUs +: 2$")
        expect(details, r"FB Memory Usage\n +Total +: 32510 MiB")
        expect(details, r"Fan Speed +: N/A")
        expect(details, r"Processes +: None")
        fields = ("--query-gpu=index,name,memory.total,utilization.gpu,fan.speed,power.limit", "--format=csv")
        expect(run(env, *fields), r"^index, name, memory.total \[MiB\], utilization.gpu \[%\], fan.speed \[%\], power.limit \[W\]$")
        expect(run(env, *fields), r"^1, Tesla V100-SXM2-32GB, 32510 MiB, 0 %, \[N/A\], 300.00 W$")
        plain = run(env, "-i", "1", "--query-gpu=memory.total,uuid", "--format=csv,noheader,nounits").strip()
        total, uuid = plain.split(", ")
        if total != "32510":
            sys.exit(f"nounits gave {plain!r}")
        bus = run(env, "-i", uuid, "--query-gpu=pci.bus_id", "--format=csv,noheader").strip()
        if run(env, f"--id={bus}", "--query-gpu=index", "--format=csv,noheader").strip() != "1":
            sys.exit("a card is not found by its bus id")
        if run(env, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"):
            sys.exit("processes on an idle card")
        expect(run(env, "--help-query-gpu"), r'"utilization.gpu"')

        expect(run(env, "--query-gpu=name,nonsense", "--format=csv", code=2), r'"nonsense" is not a field')
        expect(run(env, "--query-gpu=name", code=2), r"need --format=csv")
        expect(run(env, "--query-gpu=name", "--format=xml", code=2), r'not "xml"')
        expect(run(env, "--frobnicate", code=2), r'unknown option "--frobnicate"')
        expect(run(env, "-l", "soon", code=2), r'whole number from 1, not "soon"')
        expect(run(env, "-i", "7", code=6), r'no card is "7"')
        expect(run(dict(env, LD_LIBRARY_PATH=""), "-L", code=12), r"libnvidia-ml.so.1 cannot be loaded")

        with subprocess.Popen([SMI, "-lms", "100", "--query-gpu=index", "--format=csv"], env=env, text=True,
                              stdout=subprocess.PIPE) as loop:
            lines = [loop.stdout.readline().strip() for _ in range(7)]
            loop.terminate()
        if lines != ["index", "0", "1", "0", "1", "0", "1"]:
            sys.exit(f"the loop printed {lines}")
    print("views, choice of cards, errors and the loop are as they should be")


main()
