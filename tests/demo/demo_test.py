"""The demonstration in short: 12 seconds, the example's sizes and another pair; its claims must hold, its plots be there,
nothing may be left behind, and Ctrl-C cleans up as well. The second one is started as `sluice demo --keep`: every command
that it prints then works as printed."""

import glob
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ["SLUICE_BUILD"])
SOURCE = pathlib.Path(os.environ["SLUICE_SOURCE"])


def start(output, *arguments, program=(SOURCE / "script/demo",)):
    return subprocess.Popen([*program, "--no-install", "--no-build", "--build", BUILD, "--output", output, *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def explore(text):
    """Runs what --keep printed: looks, changes the share, stops."""
    def run(command, words):
        done = subprocess.run(["bash", "-c", command], cwd=SOURCE, capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or words not in done.stdout:
            fail(f"'{command}' as printed ended with {done.returncode}, expected '{words}'", text + done.stdout + done.stderr)
        return done.stdout
    printed = text.split("Everything keeps running", 1)[1]
    lines = [line.strip() for line in printed.splitlines()]
    looks = [line.split("      (also")[0] for line in lines if line.startswith(("SLUICE_RUN_DIR=", "nsenter "))]
    if len(looks) != 4:
        fail(f"--keep printed {len(looks)} commands to look, expected 4", text)
    for command in looks:
        run(command, "MiB" if command.startswith("nsenter") else "benchmark-")
    for verb in ("cards", "top -n 1"):
        run(looks[0].removesuffix(" ps") + f" {verb}", "")
    change = next(line for line in lines if line.startswith("To change the share: ")).removeprefix("To change the share: ")
    shared = next(command for command in looks if command.startswith(change.split()[0]) and command.endswith(" ps"))
    grant = next(line for line in run(shared, "benchmark-shared").splitlines() if "benchmark-shared" in line).split()[1]
    run(change.replace("GRANT", grant).replace("--gpu-core 55", "--gpu-core 20"), "")
    run(shared, " 20 %")
    run(next(line for line in lines if line.startswith("To stop: ")).removeprefix("To stop: "), "")


def left_behind():
    """Folders of demonstrations and processes that still run from one."""
    folders = glob.glob(f"{tempfile.gettempdir()}/sluice-demo-*")
    running = []
    for process in glob.glob("/proc/[0-9]*/environ"):
        try:
            if b"/sluice-demo-" in pathlib.Path(process).read_bytes():
                running.append(process)
        except OSError:
            continue
    return folders + running


def fail(text, output=""):
    print(output)
    stop = output.rpartition("To stop: ")[2].split("\n")[0].strip()
    if stop.endswith("/stop"):  # what --keep left running
        subprocess.run([stop], check=False)
    print(f"FAILED: {text}")
    sys.exit(1)


def main():
    before = set(left_behind())
    with tempfile.TemporaryDirectory() as output:
        by_verb = (BUILD / "bin" / "sluice", "demo")
        for arguments, program, expected in (
                (["--seconds", "12"], (SOURCE / "script/demo",), ["10487MiB", "32510MiB", "benchmark-shared"]),
                (["--seconds", "10", "--gpu-mem", "7", "--gpu-core", "55", "--keep"], by_verb, ["7340MiB"])):
            demo = start(output, *arguments, program=program)
            text, _ = demo.communicate(timeout=150)
            if demo.returncode != 0:
                fail(f"script/demo {' '.join(arguments)} ended with {demo.returncode}", text)
            for word in expected:
                if word not in text.replace(" MiB", "MiB"):
                    fail(f"'{word}' is not in what script/demo {' '.join(arguments)} printed", text)
            for name in ("utilisation.svg", "utilisation.png", "utilisation.csv"):
                if (pathlib.Path(output) / name).stat().st_size < 500:
                    fail(f"{name} is too small to be a plot", text)
            if "--keep" in arguments:
                explore(text)
        print(text)
        demo = start(output, "--seconds", "60")
        time.sleep(8)
        demo.send_signal(signal.SIGINT)
        text, _ = demo.communicate(timeout=30)
        if demo.returncode != 130:
            fail(f"after Ctrl-C script/demo ended with {demo.returncode}, expected 130", text)
    left = set(left_behind()) - before
    if left:
        fail(f"left behind: {', '.join(sorted(left))}")


if __name__ == "__main__":
    main()
