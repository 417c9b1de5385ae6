"""Images for tests on real nodes, made on the spot: a pause image, a glibc root and a musl root.

Both roots hold busybox and card_probe, a small program that asks the driver; larger programs are in deploy/images'
workloads image.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
sys.path.insert(0, str(SOURCE / "deploy/images"))
from image_archive import Image  # noqa: E402

PAUSE_NAME = "sluice-test/pause:1"
PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


def pause(folder):
    """The program that holds a pod's namespaces; returns its name in containerd and the archive."""
    program = folder / "pause"
    subprocess.run(["gcc", "-static", "-Os", "-s", "-x", "c", "-", "-o", str(program)], input=PAUSE_SOURCE, text=True, check=True)
    image = Image()
    image.add_file(program, "/pause", 0o755)
    return f"docker.io/{PAUSE_NAME}", image.write(folder / "pause.tar", PAUSE_NAME, entrypoint=["/pause"])


def probe(folder, compiler="gcc"):
    """Roots with card_probe and busybox: sluice-test/probe:1 (glibc) or sluice-test/musl:1, which has no glibc at all."""
    program = folder / f"card_probe-{compiler}"
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", str(HERE / "card_probe.c"), "-o", str(program), *(["-ldl"] if compiler == "gcc" else [])], check=True)
    image = Image()
    busybox = shutil.which("busybox")
    image.add_program(busybox, "/bin/busybox")
    for name in ("sh", "cat", "env", "sleep", "ls", "echo", "touch", "id", "grep", "mount", "umount", "cp", "head", "dd", "kill", "true", "false", "seq", "rm"):
        image.add_link(f"/bin/{name}", "busybox")
    image.add_folder("/tmp", 0o1777)
    if compiler == "gcc":
        image.add_program(program, "/usr/bin/card_probe")
        name = "sluice-test/probe:1"
    else:
        image.add_file(program, "/usr/bin/card_probe", 0o755)
        loader = Path("/lib/ld-musl-x86_64.so.1")
        image.add_file(loader.resolve(), str(loader), 0o755)
        name = "sluice-test/musl:1"
    return image.write(folder / f"probe-{compiler}.tar", name)


def shipped(build, folder, *names):
    """Images of deploy/images/build: agent, scheduler, simulated-cards, workloads; returns the archives."""
    subprocess.run([SOURCE / "deploy/images/build", "--build", build, "--output", folder, *names], check=True, stdout=subprocess.DEVNULL)
    return [Path(folder) / f"{name}.tar" for name in names]
