"""Virtual environments for tests, made once per content of a requirements file.

Tests against real packages need exactly pinned versions, and installing them takes minutes. So an environment is kept
under build/venvs/, named after the file and a hash of its content: a changed pin makes a new one, an unchanged one
costs nothing. Several tests may want the same environment at once; a file lock lets one of them install.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


class VenvError(Exception):
    """An environment could not be made; the message holds pip's last lines."""


def ensure(requirements):
    """Returns the pathlib.Path of an environment with `requirements` (a pip file, every line pinned by ==) installed.

    Raises VenvError when a line is not pinned or pip fails.
    """
    requirements = pathlib.Path(requirements)
    content = requirements.read_text()
    for line in content.splitlines():
        line = line.split("#")[0].strip()
        if line and "==" not in line:
            raise VenvError(f"{requirements}: '{line}' is not pinned; write package==version")
    digest = hashlib.sha256((sys.version + content).encode()).hexdigest()[:12]
    root = pathlib.Path(os.environ["SLUICE_SOURCE"]) / "build" / "venvs"
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"{requirements.stem}-{digest}"
    with open(root / f".{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (target / "complete").exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(target)], check=True, stdout=subprocess.DEVNULL)
        pip = subprocess.run([str(target / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check",
                              "--retries", "2", "-r", str(requirements)], capture_output=True, text=True)
        if pip.returncode:
            raise VenvError(f"pip could not install {requirements}:\n" + "\n".join(pip.stderr.splitlines()[-8:]))
        (target / "complete").touch()
    return target


def site_packages(environment):
    """The folder of installed packages of an environment."""
    return next((environment / "lib").glob("python3*/site-packages"))
