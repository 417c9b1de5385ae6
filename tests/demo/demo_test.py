"""The demonstration in short: 12 seconds, the example's sizes and another pair; its claims must hold, its plots be there,
nothing may be left behind, and Ctrl-C cleans up as well."""

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


def start(output, *arguments):
    return subprocess.Popen([SOURCE / "script/demo", "--no-install", "--no-build", "--build", BUILD, "--output", output,
                             *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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
    print(f"FAILED: {text}")
    sys.exit(1)


def main():
    before = set(left_behind())
    with tempfile.TemporaryDirectory() as output:
        for arguments, expected in ((["--seconds", "12"], ["10487MiB", "32510MiB", "benchmark-shared"]),
                                    (["--seconds", "10", "--gpu-mem", "7", "--gpu-core", "55"], ["7340MiB"])):
            demo = start(output, *arguments)
            text, _ = demo.communicate(timeout=150)
            if demo.returncode != 0:
                fail(f"script/demo {' '.join(arguments)} ended with {demo.returncode}", text)
            for word in expected:
                if word not in text.replace(" MiB", "MiB"):
                    fail(f"'{word}' is not in what script/demo {' '.join(arguments)} printed", text)
            for name in ("utilisation.svg", "utilisation.png", "utilisation.csv"):
                if (pathlib.Path(output) / name).stat().st_size < 500:
                    fail(f"{name} is too small to be a plot", text)
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
