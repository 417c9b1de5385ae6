"""Builds what the checks need, from the tree alone: everything where the libraries are there, else the bare part."""

import os
import pathlib
import shutil
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FULL_TARGETS = ["gpu_programs", "sluice_bin", "sluice_agent_bin"]
BARE_LEFT_OUT = ("the agent and the command `sluice` (their libraries are missing): what only they do is left out, namely "
                 "`sluice run`, `sluice doctor`, NVML's correction of what a context costs; turns are kept by the agent's own "
                 "turn keeper in gpu_node")


class Build:
    """folder; full (agent and sluice are there); left_out (sentence or None)."""

    def __init__(self, folder, full, left_out=None):
        self.folder = pathlib.Path(folder).resolve()
        self.full = full
        self.left_out = left_out
        self.programs = self.folder / "bin" / "workloads"
        self.guest = self.folder / "guest"
        self.tools = self.folder / "bin"
        for needed in (self.programs / "gpu_node", self.programs / "gpu_costs", self.programs / "tiny_kernels",
                       self.guest / "libcuda.so.1"):
            if not needed.exists():
                raise SystemExit(f"tests/gpu/run: {needed} is missing; build the target gpu_programs, or leave --build out")


def existing(folder):
    full = all((pathlib.Path(folder) / "bin" / name).exists() for name in ("sluice", "sluice-agent"))
    return Build(folder, full, None if full else BARE_LEFT_OUT)


def configure_and_build(folder, options, targets, say):
    generator = ["-G", "Ninja"] if shutil.which("ninja") else ["-G", "Unix Makefiles"]
    configure = ["cmake", "-S", str(SOURCE), "-B", str(folder), *generator, "-DCMAKE_BUILD_TYPE=Release",
                 "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -g", "-DCMAKE_C_FLAGS_RELEASE=-O2 -g", *options]
    build = ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 2), "--target", *targets]
    for command in (configure, build):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            tail = (done.stdout + done.stderr).strip().splitlines()[-15:]
            say("  " + "\n  ".join(tail))
            return False
    return True


def build(folder, say, bare_only):
    """Full first; where that does not go, bare. What CMake or the compiler said is shown."""
    folder = pathlib.Path(folder)
    if not bare_only:
        say("building everything ...")
        if configure_and_build(folder / "full", [], FULL_TARGETS, say):
            return Build(folder / "full", True)
        say("that does not go here; building the part that needs nothing but a compiler ...")
    if not configure_and_build(folder / "bare", ["-DSLUICE_BARE=ON"], ["gpu_programs"], say):
        raise SystemExit("tests/gpu/run: the bare part needs CMake 3.22 or newer and a compiler for C++20; see above")
    return Build(folder / "bare", False, BARE_LEFT_OUT)
