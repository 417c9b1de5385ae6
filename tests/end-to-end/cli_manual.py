"""Compares the help texts in docs/cli.md with the tools' own --help; with --write renews them.

The manual's prose ends at the first marker line; everything from there on is made here, one section per command.
"""

import difflib
import os
import pathlib
import subprocess
import sys

MARKER = "<!-- from here on: made from --help -->\n"
COMMANDS = ("run", "ps", "top", "set", "cards", "doctor", "demo", "explain", "verify")


def help_text(tool, *command):
    result = subprocess.run([tool, *command, "--help"], capture_output=True, text=True, check=True)
    if result.stderr:
        sys.exit(f"{' '.join(command)} --help wrote to standard error: {result.stderr}")
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


def reference(tool):
    parts = [MARKER, "\n## `sluice`\n\n```text\n", help_text(tool), "\n```\n"]
    for command in COMMANDS:
        parts += [f"\n## `sluice {command}`\n\n```text\n", help_text(tool, command), "\n```\n"]
    plugin = os.path.join(os.path.dirname(tool), "kubectl-inspect-cgpu")
    parts += ["\n## `kubectl inspect cgpu`\n\n```text\n", help_text(plugin), "\n```\n"]
    return "".join(parts)


def main():
    tool = os.path.join(os.environ["SLUICE_BUILD"], "bin", "sluice")
    manual = pathlib.Path(os.environ["SLUICE_SOURCE"]) / "docs" / "cli.md"
    found = manual.read_text()
    expected = found.split(MARKER)[0] + reference(tool)
    if "--write" in sys.argv[1:]:
        manual.write_text(expected)
        return 0
    if found == expected:
        return 0
    sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), expected.splitlines(True), "docs/cli.md", "--help"))
    print("docs/cli.md is older than the tool's help; renew it: tests/end-to-end/cli_manual.py --write")
    return 1


sys.exit(main())
