"""Packs programs and files into an image archive that containerd, Docker and podman load, with no engine and no registry.

    image = Image()
    image.add_program("build/release/bin/sluice-agent", "/usr/bin/sluice-agent")     # with the libraries it needs
    image.write("agent.tar", "sluice/agent:0.1", entrypoint=["/usr/bin/sluice-agent"])

The archive is the one that `docker save` writes (manifest.json, config, one layer): `ctr -n k8s.io images import`,
`docker load` and `podman load` all take it. Equal input gives equal bytes: names are sorted and times are zero.
"""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

# What every distribution's glibc brings along: a driver's libraries, ours among them, count on these being there.
C_LIBRARY_PARTS = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6")
LIBRARY_FOLDERS = ("lib", "lib32", "lib64", "libx32", "bin", "sbin")


def libraries_of(program):
    """Shared libraries that a program or library needs, by the path the loader finds them under, as {path: file}."""
    result = subprocess.run(["ldd", str(program)], capture_output=True, text=True)
    if result.returncode != 0:  # statically linked
        return {}
    found = {}
    for line in result.stdout.splitlines():
        match = re.search(r"(?:=>\s+)?(/\S+)\s+\(0x", line)
        if match:
            found[match[1]] = Path(match[1]).resolve()
        elif "not found" in line:
            raise SystemExit(f"image: {program} needs {line.split()[0]}, which is not on this machine")
    return found


class Image:
    def __init__(self):
        self.entries = {}  # path inside, without a leading slash -> (kind, source, mode, owner)

    def _put(self, path, entry):
        """Files under /lib, /bin, ... lie under /usr, as distributions have them today; parents are made."""
        path = str(path).lstrip("/")
        top = path.split("/")[0]
        if top in LIBRARY_FOLDERS and "/" in path:
            self.entries.setdefault(top, ("link", f"usr/{top}", 0o777, 0))
            path = f"usr/{path}"
        for parent in list(Path(path).parents)[:-1]:
            self.entries.setdefault(str(parent), ("folder", None, 0o755, 0))
        self.entries[path] = entry

    def add_folder(self, path, mode=0o755, owner=0):
        self._put(path, ("folder", None, mode, owner))

    def add_link(self, path, target):
        self._put(path, ("link", target, 0o777, 0))

    def add_text(self, path, text, mode=0o644):
        self._put(path, ("bytes", text.encode(), mode, 0))

    def add_file(self, source, path, mode=None, strip=False):
        """strip: without debugging information, which only makes the image larger."""
        source = Path(source)
        if not source.is_file():
            raise SystemExit(f"image: {source} is missing; build it first (script/test builds everything)")
        data = stripped(source) if strip else source.read_bytes()
        self._put(path, ("bytes", data, mode if mode is not None else source.stat().st_mode & 0o755, 0))

    def add_program(self, source, path):
        """A program (or library) with the shared libraries it needs, each where the loader looks for it; what lies
        beside the program itself (RPATH $ORIGIN) stays beside it."""
        self.add_file(source, path, strip=True)
        beside = Path(source).resolve().parent
        for name, file in libraries_of(source).items():
            if file.parent == beside:
                self.add_file(file, Path(path).parent / Path(name).name, strip=True)
            else:
                self.add_file(file, name)
            if Path(name).name == "libc.so.6":
                for part in C_LIBRARY_PARTS:
                    self.add_file((Path(name).parent / part).resolve(), Path(name).parent / part)

    def layer(self):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, (kind, source, mode, owner) in sorted(self.entries.items()):
                info = tarfile.TarInfo(path)
                info.mode, info.uid, info.gid = mode, owner, owner
                if kind == "folder":
                    info.type = tarfile.DIRTYPE
                elif kind == "link":
                    info.type, info.linkname = tarfile.SYMTYPE, source
                else:
                    info.size = len(source)
                archive.addfile(info, io.BytesIO(source) if kind == "bytes" else None)
        return buffer.getvalue()

    def write(self, archive_path, name, entrypoint=(), command=(), environment=None, user=""):
        layer = self.layer()
        digest = hashlib.sha256(layer).hexdigest()
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **(environment or {})}
        config = json.dumps({
            "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
            "config": {"Env": [f"{key}={value}" for key, value in variables.items()], "Entrypoint": list(entrypoint) or None,
                       "Cmd": list(command) or None, "User": user, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "deploy/images/build"}]}, sort_keys=True).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]).encode()
        partial = f"{archive_path}.partial-{os.getpid()}"
        with tarfile.open(partial, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for member, data in ((config_name, config), (f"{digest}/layer.tar", layer), ("manifest.json", manifest)):
                info = tarfile.TarInfo(member)
                info.mode, info.size = 0o644, len(data)
                archive.addfile(info, io.BytesIO(data))
        os.rename(partial, archive_path)
        return Path(archive_path)


def stripped(source):
    with tempfile.NamedTemporaryFile() as target:
        result = subprocess.run(["strip", "--strip-unneeded", "-o", target.name, str(source)], capture_output=True)
        return Path(target.name).read_bytes() if result.returncode == 0 else Path(source).read_bytes()
