"""Runs clang-tidy on the files of a compile database whose preprocessed text is not in the cache of passed texts.

Usage: tidy_changed.py BUILD ALL JOBS [FILE...]; ALL=1 ignores the cache. Exit 0 clean, 1 findings, 2 cannot run.
A file counts as passed only when clang-tidy ended with 0, so an interrupted run is simply continued by the next one.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

CACHE = pathlib.Path("build/tidy-cache")
TOOL = "clang-tidy-19"


def preprocessed_key(entry: dict, salt: bytes) -> str:
    """Hash of what the compiler sees, or "" when the file does not preprocess (a generated header is not there yet)."""
    words = shlex.split(entry["command"])
    if os.path.basename(words[0]) == "ccache":
        words = words[1:]
    command, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif word not in ("-c", "-MD", "-MMD"):
            command.append(word)
    result = subprocess.run(command + ["-E", "-P"], cwd=entry["directory"], capture_output=True, check=False)
    return hashlib.sha256(salt + result.stdout).hexdigest() if result.returncode == 0 else ""


def check(build: str, entry: dict, salt: bytes, ignore_cache: bool) -> tuple[str, str, str]:
    """(file, outcome, text) with outcome one of cached, clean, findings, unbuilt."""
    name = os.path.relpath(entry["file"])
    key = preprocessed_key(entry, salt)
    if not key:
        return name, "unbuilt", ""
    mark = CACHE / key
    if mark.exists() and not ignore_cache:
        return name, "cached", ""
    # -w: warnings are the compiler's own business, and clang's differ from g++'s; here only the listed checks count.
    result = subprocess.run([TOOL, "--quiet", "--extra-arg=-w", "-p", build, entry["file"]], capture_output=True,
                            text=True, check=False)
    if result.returncode != 0:
        return name, "findings", result.stdout + result.stderr
    mark.touch()
    return name, "clean", ""


def main(arguments: list[str]) -> int:
    build, ignore_cache, jobs, wanted = arguments[0], arguments[1] == "1", int(arguments[2]), arguments[3:]
    entries = {entry["file"]: entry for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text())
               if entry["file"].endswith(".cc") and os.path.realpath(entry["file"]).startswith(os.getcwd() + "/")
               and not os.path.relpath(entry["file"]).startswith("build/")}
    if wanted:
        chosen = {os.path.abspath(name) for name in wanted}
        unknown = chosen - entries.keys()
        if unknown:
            print(f"tidy: not part of {build}: {', '.join(sorted(map(os.path.relpath, unknown)))}", file=sys.stderr)
            return 2
        entries = {name: entry for name, entry in entries.items() if name in chosen}
    CACHE.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([TOOL, "--version"], capture_output=True, check=True).stdout
    salt = version + pathlib.Path(".clang-tidy").read_bytes()
    counts = {"cached": 0, "clean": 0, "findings": 0, "unbuilt": 0}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(check, build, entry, salt, ignore_cache) for entry in entries.values()]
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name, outcome, text = future.result()
            counts[outcome] += 1
            if outcome == "findings":
                print(text)
            if sys.stderr.isatty():
                print(f"\r[{done}/{len(futures)}] {name[:90]:<90}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"tidy: {counts['clean']} checked and clean, {counts['cached']} unchanged, {counts['findings']} with findings"
          + (f", {counts['unbuilt']} not checked (build {build} first: generated headers are missing)"
             if counts["unbuilt"] else ""))
    return 1 if counts["findings"] or counts["unbuilt"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
