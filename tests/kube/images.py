"""Images for tests on real nodes, made on the spot: a pause image, a glibc root and a musl root.

The glibc root is deploy/images' workloads image; the musl root holds busybox and one small program that asks the driver,
linked with musl.
"""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
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


def shipped(build, folder, *names):
    """Images of deploy/images/build: agent, scheduler, simulated-cards, workloads; returns the archives."""
    subprocess.run([SOURCE / "deploy/images/build", "--build", build, "--output", folder, *names], check=True, stdout=subprocess.DEVNULL)
    return [Path(folder) / f"{name}.tar" for name in names]
