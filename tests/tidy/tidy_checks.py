"""Lints the repository: the rules of CONTRIBUTING.md that a machine can check, each one a function over a Tree.

A check returns findings, one line each: "path:line: what is wrong and how to mend it". tidy_test.py runs them all over
the tracked files, tidy_checks_test.py plants one fault per rule in a scratch tree and expects it to be found.
"""

import dataclasses
import pathlib
import re
import subprocess

CODE = (".cc", ".h", ".py", ".sh", ".S", ".c")
MAX_LINES = 600
MAX_COLUMNS = 200  # clang-format holds C++ to 120; tables in documents and scripts may be wider
# Tests and tables may be longer: their length is their content.
LONG_ALLOWED = re.compile(r"(_test\.(cc|py)$)|(_table\.(h|cc|inc)$)|(\.inc$)|(^src/abi/)|(^tests/)|(^bench/)")

# Written in pieces, so that this file passes its own rule.
FORBIDDEN_WORDS = tuple("".join(parts) for parts in (
    ("TO", "DO"), ("FIX", "ME"), ("HA", "CK"), ("X", "XX"), ("not ", "implemented"), ("place", "holder"),
    ("for ", "now")))
FORBIDDEN_PATTERNS = (
    (re.compile("/" + r"work/(main|shared|\.library)"), "names a path of one machine"),
    (re.compile(r"\bissue" + r"s? #?\d+\b", re.IGNORECASE), "names an issue by number; say what it was about"),
    (re.compile("|".join(host.replace(".", r"\.") for host in (
        "deb." + "debian.org", "pypi" + ".org", "pythonhosted" + ".org", "proxy.golang" + ".org",
        "registry.npmjs" + ".org", "crates" + ".io"))), "names a registry's host"),
)


@dataclasses.dataclass(frozen=True)
class Tree:
    """A repository: its root and the tracked files, as paths relative to the root."""
    root: pathlib.Path
    files: tuple[str, ...]

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def code(self) -> list[str]:
        return [name for name in self.files if name.endswith(CODE) or is_script(self, name)]

    def cpp(self) -> list[str]:
        return [name for name in self.files if name.endswith((".cc", ".h"))]


def is_script(tree: Tree, name: str) -> bool:
    if "." in pathlib.PurePath(name).name:
        return False
    with open(tree.root / name, "rb") as file:
        return file.read(2) == b"#!"


def tracked(root: pathlib.Path) -> Tree:
    """The files git knows that are still there."""
    output = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True).stdout
    names = [name for name in output.decode().split("\0") if name and (root / name).is_file()
             and not (root / name).is_symlink()]
    return Tree(root, tuple(names))


def file_length(tree: Tree) -> list[str]:
    findings = []
    for name in tree.code():
        lines = tree.text(name).count("\n")
        if lines > MAX_LINES and not LONG_ALLOWED.search(name):
            findings.append(f"{name}:1: {lines} lines, at most {MAX_LINES}; split it by subject")
    return findings


def opening_comment(tree: Tree) -> list[str]:
    """Every source file says in its first lines what problem it solves; x.cc may leave it to its x.h, tests to both."""
    findings, headers = [], {name for name in tree.files if name.endswith(".h")}
    for name in tree.code():
        lines = tree.text(name).splitlines()
        if lines and lines[0].startswith("#!"):
            lines = lines[1:]
        first = lines[0] if lines else ""
        openers = ("#", '"""') if name.endswith(".py") or not name.endswith(CODE) or name.endswith(".sh") else (
            "//", "/*", "#" if name.endswith(".S") else "//")
        if name.endswith("_test.cc") or (name.endswith(".cc") and name[:-3] + ".h" in headers):
            continue
        if not first.startswith(openers) or first.startswith("#include") or first.startswith("#pragma"):
            findings.append(f"{name}:1: opens without a comment; say what problem the file solves")
    return findings


def include_graph(tree: Tree, table: dict[str, set[str]]) -> list[str]:
    """Folders of src include only what the table allows; tests beside the code may also include what tests need."""
    findings = []
    include = re.compile(r'^\s*#\s*include\s+"([a-z_0-9]+)/[^"]+"')
    for name in tree.cpp():
        parts = name.split("/")
        if parts[0] != "src" or len(parts) < 3:
            continue
        folder = parts[1]
        if folder not in table:
            findings.append(f"{name}:1: folder src/{folder} has no line in tests/tidy/layers.txt; add it")
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            match = include.match(line)
            if not match or match[1] not in table or match[1] == folder or match[1] in table[folder]:
                continue
            if is_test_source(name):
                continue
            findings.append(f"{name}:{number}: src/{folder} may not include src/{match[1]}; allowed: "
                            f"{' '.join(sorted(table[folder])) or 'nothing but itself'}")
    return findings


def is_test_source(name: str) -> bool:
    return re.search(r"(_test\.cc|_test\.h|_testing\.(h|cc)|/testing/.*)$", name) is not None


def include_cycles(table: dict[str, set[str]]) -> list[str]:
    """The table itself points one way."""
    findings, done = [], set()

    def visit(folder: str, path: tuple[str, ...]) -> None:
        if folder in path:
            findings.append(f"tests/tidy/layers.txt:1: circle {' -> '.join(path[path.index(folder):] + (folder,))}")
            return
        if folder not in done:
            for other in sorted(table.get(folder, ())):
                visit(other, path + (folder,))
            done.add(folder)

    for folder in table:
        visit(folder, ())
    return findings


def read_layers(path: pathlib.Path) -> dict[str, set[str]]:
    table = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            folder, _, allowed = line.partition(":")
            table[folder.strip()] = set(allowed.split())
    return table


def words(tree: Tree) -> list[str]:
    findings = []
    pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in FORBIDDEN_WORDS[:4])
                         + "|" + "|".join(rf"(?i:\b{re.escape(word)}s?\b)" for word in FORBIDDEN_WORDS[4:]))
    # CONTRIBUTING.md and this rule's own test may name what is forbidden.
    exempt = {"CONTRIBUTING.md", "LICENSE", "tests/tidy/tidy_checks_test.py"}
    for name in tree.files:
        if name in exempt or name.endswith((".png", ".bin", ".gz")):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            match = pattern.search(line)
            if match:
                findings.append(f"{name}:{number}: '{match[0]}'; finish it or say plainly what is missing")
            for forbidden, reason in FORBIDDEN_PATTERNS:
                if forbidden.search(line):
                    findings.append(f"{name}:{number}: {reason}: '{forbidden.search(line)[0]}'")
    return findings


def stray_characters(tree: Tree) -> list[str]:
    findings = []
    texts = [name for name in tree.files if name.endswith((".md", ".txt", ".cmake", ".yaml")) and "/corpus/" not in name]
    for name in tree.code() + texts:  # a fuzzer's seeds are bytes, not texts
        text = tree.text(name)
        if text and not text.endswith("\n"):
            findings.append(f"{name}:{text.count(chr(10)) + 1}: no newline at the end of the file")
        for number, line in enumerate(text.splitlines(), 1):
            blanks_count = name.endswith(".md") or name.startswith("tests/data/inspect/")  # printouts to the byte
            if "\r" in line or (line != line.rstrip() and not blanks_count):
                findings.append(f"{name}:{number}: trailing blank or carriage return")
            elif "\t" in line and name.endswith((".cc", ".h", ".py", ".md")):
                findings.append(f"{name}:{number}: a tab; indent by blanks")
            elif len(line) > MAX_COLUMNS and not name.endswith((".md", ".txt")):
                findings.append(f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
    return findings


def include_guard(tree: Tree) -> list[str]:
    """Headers guard themselves; X-macro tables are meant to be included many times and are called .inc."""
    guard = re.compile(r"^#pragma once$|^#ifndef (\w+_H_)\n#define \1$", re.MULTILINE)
    return [f"{name}:1: no include guard; write '#pragma once'" for name in tree.files
            if name.endswith(".h") and not guard.search(tree.text(name))]


def broken_links(tree: Tree) -> list[str]:
    """Relative links in documents lead to a file or folder, and to a heading where they name one."""
    findings = []
    link = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
    for name in (name for name in tree.files if name.endswith(".md")):
        fenced = False
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if fenced:
                continue
            for target in link.findall(re.sub(r"`[^`]*`", "", line)):
                finding = check_link(tree, name, target)
                if finding:
                    findings.append(f"{name}:{number}: {finding}")
    return findings


def check_link(tree: Tree, name: str, target: str) -> str:
    if re.match(r"[a-z]+:", target):
        return ""
    path, _, anchor = target.partition("#")
    file = (tree.root / name).parent / path if path else tree.root / name
    if not file.resolve().exists():
        return f"link to '{target}', which does not exist"
    if anchor and file.suffix == ".md":
        headings = {slug(line.lstrip("#").strip()) for line in file.read_text().splitlines() if line.startswith("#")}
        if anchor not in headings:
            return f"link to '{target}', but no heading there is called so"
    return ""


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def formatting(tree: Tree) -> list[str]:
    files = tree.cpp()
    if not files:
        return []
    result = subprocess.run(["clang-format-19", "--dry-run", "-Werror", "--ferror-limit=1", *files], cwd=tree.root,
                            capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return []
    bad = re.findall(r"^(\S+?):(\d+):\d+: error", result.stderr, re.MULTILINE)
    return [f"{name}:{line}: not as clang-format-19 writes it; run clang-format-19 -i {name}" for name, line in bad] or [
        f"clang-format-19 failed: {result.stderr.strip()[:500]}"]


def executable_scripts(tree: Tree) -> list[str]:
    """A script in script/ can be run, and bash finds no syntax error in it."""
    findings = []
    for name in tree.files:
        if not (is_script(tree, name) or name.endswith(".sh")):
            continue
        if name.startswith("script/") and "/lib/" not in name and not (tree.root / name).stat().st_mode & 0o100:
            findings.append(f"{name}:1: not executable; chmod +x {name}")
        if "bash" in tree.text(name).splitlines()[0]:
            result = subprocess.run(["bash", "-n", str(tree.root / name)], capture_output=True, text=True, check=False)
            if result.returncode != 0:
                findings.append(f"{name}:1: {result.stderr.strip()[:300]}")
    return findings


CHECKS = {
    "file length": file_length,
    "opening comment": opening_comment,
    "words": words,
    "stray characters": stray_characters,
    "include guard": include_guard,
    "broken links": broken_links,
    "formatting": formatting,
    "scripts": executable_scripts,
}
