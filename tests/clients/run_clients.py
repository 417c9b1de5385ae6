"""Runs one client script on a simulated card and compares what it saw with the card's own log.

Usage: run_clients.py NAME [--per-thread] [--pressure] [--prefix COMMAND] [--total-bytes N] [--cards DIR]
  NAME            bindings, core, tinygrad, drjit, nvml, nvitop, gpustat, numba: the script client_NAME.py
  --per-thread    ask for the per-thread default stream (cuda-python packages)
  --pressure      a worker fills the memory it can get to the package's own error, frees it, and works on; the log must show
                  that it came within 64 MiB of --total-bytes and not over it
  --beside-bytes  what others hold on the card all the while (with --pressure)
  --prefix        words put before the client's command, e.g. "sluice run --gpu-mem 10 --"; empty: the bare card
  --total-bytes   the memory that the client shall see as the card's; default: what the card has
  --cards         use the cards in this folder instead of making one
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import environment  # noqa: E402

BUILD = pathlib.Path(os.environ["SLUICE_BUILD"])
VIEWERS = ("nvml", "nvitop", "gpustat")
CLIENT_LIMIT_S = 150
MIB = 1 << 20


class Fault(Exception):
    """What the client saw and what the card's log says do not agree, or the client failed."""


def expect(condition, sentence):
    if not condition:
        raise Fault(sentence)


class Bench:
    """A card, the environment of clients on it, and its log."""

    def __init__(self, cards, packages, prefix, per_thread):
        self.cards = cards
        self.python = packages / "bin" / "python"
        self.prefix = shlex.split(prefix)
        self.env = dict(os.environ, SLUICE_SIM_DIR=str(cards), PYTHONDONTWRITEBYTECODE="1", HOME=str(cards),
                        LD_LIBRARY_PATH=str(BUILD / "sim"))
        if per_thread:
            self.env["CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"] = "1"

    def command(self, name):
        return [*self.prefix, str(self.python), str(HERE / f"client_{name}.py")]

    def run(self, name, *arguments):
        """The JSON line of a client."""
        done = subprocess.run([*self.command(name), *arguments], env=self.env, capture_output=True, text=True, timeout=CLIENT_LIMIT_S)
        if done.returncode:
            raise Fault(f"client_{name}.py ended with {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-3000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def log(self, pid):
        """(milliseconds with kernels executing, most resident bytes) of a process by the card's own log."""
        done = subprocess.run([str(BUILD / "bin" / "sluice-sim"), "log", str(self.cards / "card0"), "--json",
                               "--window", "3600000", "--pid", str(pid)], capture_output=True, text=True, check=True)
        busy_ms = most = 0
        for window in json.loads(done.stdout)["windows"]:
            length_ms = (window["to_ns"] - window["from_ns"]) / 1e6
            for process in window["processes"]:
                if process["pid"] == pid:
                    busy_ms += process["executing_percent"] / 100 * length_ms
                    most = max(most, process["most_resident_bytes"])
        return busy_ms, most

    def card_now_ms(self):
        done = subprocess.run([str(BUILD / "bin" / "sluice-sim"), "show", str(self.cards / "card0"), "--json"],
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["now_ns"] // 1000000

    def card_log(self, from_ms):
        """Most bytes resident on the card at one time, all processes together, since then."""
        done = subprocess.run([str(BUILD / "bin" / "sluice-sim"), "log", str(self.cards / "card0"), "--json", "--pid", "0",
                               "--window", "3600000", "--from", str(from_ms)], capture_output=True, text=True, check=True)
        return max(process["most_resident_bytes"] for window in json.loads(done.stdout)["windows"]
                   for process in window["processes"] if process["pid"] == 0)

    def smi(self, *arguments):
        done = subprocess.run([*self.prefix, str(BUILD / "bin" / "nvidia-smi"), *arguments], env=self.env,
                              capture_output=True, text=True, timeout=30)
        expect(done.returncode == 0, f"nvidia-smi {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip()


def check_worker(bench, seen):
    busy_ms, most = bench.log(seen["pid"])
    expect(most > 0, "the card's log does not know the client")
    expect(most >= seen.get("held_bytes", 0), f"held {seen.get('held_bytes')} bytes, the log's most is {most}")
    if "used_bytes" in seen and not bench.prefix:
        expect(most >= seen["used_bytes"], f"the client saw {seen['used_bytes']} bytes in use, the log's most is {most}")
    if "busy_ms" in seen:
        low, high = seen["busy_ms"] * 0.97, seen["busy_ms"] * 1.03 + 20
        expect(low <= busy_ms <= high, f"launched {seen['busy_ms']:.1f} ms of kernels, the log has {busy_ms:.1f} ms")
    else:
        expect(busy_ms > 0, "the log has no kernel of the client")
    print(f"{seen['client']}: {busy_ms:.2f} ms busy and {most / MIB:.0f} MiB at most by the log; saw {json.dumps(seen)}")


def check_pressure(bench, seen, total_bytes, beside_bytes, from_ms):
    # The card's row: pools belong to no context, and the log's rows of processes are those of their contexts.
    most = bench.card_log(from_ms) - beside_bytes
    expect(seen.get("filled_bytes", 0) > 0, "the client did not fill the card's memory")
    expect(most <= total_bytes, f"the log's most is {most} bytes, the limit {total_bytes}")
    expect(most > total_bytes - 64 * MIB, f"the log's most is {most} bytes of {total_bytes}: memory was refused too early")


def memory_of(seen, what):
    return seen.get(f"{what}_bytes", seen.get(f"{what}_mib", 0) * MIB)


def check_viewer(bench, name, total_bytes):
    """A viewer beside a program that keeps the card busy."""
    with subprocess.Popen(bench.command("holder"), env=bench.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as holder:
        try:
            held = json.loads(holder.stdout.readline())
            time.sleep(1.5)
            seen = bench.run(name)
            smi = bench.smi("--query-gpu=memory.total,memory.used,utilization.gpu", "--format=csv,noheader,nounits")
            apps = bench.smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
        finally:
            holder.stdin.close()
            holder.wait(timeout=30)
    _, most = bench.log(held["pid"])
    total_mib, used_mib, utilisation = (int(value) for value in smi.split(", "))
    if total_bytes:
        expect(memory_of(seen, "total") // MIB == total_bytes // MIB, f"total {memory_of(seen, 'total')}, not {total_bytes}")
    expect(memory_of(seen, "total") // MIB == total_mib, f"{name} and nvidia-smi differ about the card's memory")
    listed = dict(map(tuple, seen["processes"]))
    expect(held["pid"] in listed, f"{held['pid']} is not among {listed}")
    share = listed[held["pid"]]
    share_bytes = share * MIB if "used_mib" in seen else share
    expect(abs(share_bytes - most) <= MIB, f"{name} gives the process {share_bytes} bytes, the log {most}")
    expect(256 * MIB <= most, f"the process holds 256 MiB, the log has {most}")
    expect(abs(memory_of(seen, "used") // MIB - used_mib) <= 320, f"{name} sees {memory_of(seen, 'used')} bytes in use")
    expect(seen["utilisation"] >= 60 and utilisation >= 60, f"busy card: {seen['utilisation']} and {utilisation} %")
    expect(f"{held['pid']}, {most // MIB}" in apps, f"nvidia-smi lists {apps!r}, expected {held['pid']}, {most // MIB}")
    print(f"{seen['client']}: {json.dumps(seen)}; nvidia-smi: {smi}; apps: {apps}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--per-thread", action="store_true")
    parser.add_argument("--pressure", action="store_true")
    parser.add_argument("--beside-bytes", type=int, default=0)
    parser.add_argument("--prefix", default=os.environ.get("SLUICE_CLIENT_PREFIX", ""))
    parser.add_argument("--total-bytes", type=int, default=0)
    parser.add_argument("--cards", type=pathlib.Path)
    args = parser.parse_args()
    if args.name == "numba" and os.environ.get("SLUICE_NUMBA") != "1":
        print("numba-cuda is checked by request: SLUICE_NUMBA=1 (its compilers are a large download)")
        sys.exit(77)
    packages = environment.ensure(HERE / ("requirements_numba.txt" if args.name == "numba" else "requirements.txt"))
    with tempfile.TemporaryDirectory(prefix="sluice-clients-") as folder:
        cards = args.cards or pathlib.Path(folder)
        total = args.total_bytes
        if not args.cards:
            subprocess.run([str(BUILD / "bin" / "sluice-sim"), "create", str(cards), "--card", "A100-40GB"], check=True,
                           stdout=subprocess.DEVNULL)
        bench = Bench(cards, packages, args.prefix, args.per_thread)
        try:
            if args.name in VIEWERS:
                check_viewer(bench, args.name, total)
            else:
                from_ms = bench.card_now_ms()
                seen = bench.run(args.name, *(["--pressure"] if args.pressure else []))
                check_worker(bench, seen)
                if args.pressure:
                    check_pressure(bench, seen, total, args.beside_bytes, from_ms)
        except Fault as fault:
            sys.exit(f"{args.name}: {fault}")


if __name__ == "__main__":
    main()
