"""Compares the help texts in docs/ with the programs' own --help; with --write renews them.

A manual's prose ends at the marker line; everything from there on is made here, one section per command.
"""

import difflib
import os
import pathlib
import subprocess
import sys

MARKER = "<!-- from here on: made from --help -->\n"
SLUICE = ("run", "ps", "top", "set", "cards", "doctor", "demo", "explain", "verify")
# Manual: its sections, as (title, program, arguments before --help).
MANUALS = {
    "cli.md": [("sluice", "sluice", [])] + [(f"sluice {command}", "sluice", [command]) for command in SLUICE] +
              [("kubectl inspect cgpu", "kubectl-inspect-cgpu", [])],
    "node-agent.md": [("sluice-agent --kubernetes", "sluice-agent", ["--kubernetes"]), ("sluice-agent", "sluice-agent", [])],
    "scheduler.md": [("sluice-scheduler", "sluice-scheduler", [])],
}


def help_text(program, arguments):
    tool = os.path.join(os.environ["SLUICE_BUILD"], "bin", program)
    result = subprocess.run([tool, *arguments, "--help"], capture_output=True, text=True, check=True)
    if result.stderr:
        sys.exit(f"{program} {' '.join(arguments)} --help wrote to standard error: {result.stderr}")
    # The programs name themselves by the path under which they were started, here the build folder's.
    return "\n".join(line.rstrip() for line in result.stdout.replace(tool, program).strip().splitlines())


def reference(sections):
    parts = [MARKER]
    for title, program, arguments in sections:
        parts += [f"\n## `{title}`\n\n```text\n", help_text(program, arguments), "\n```\n"]
    return "".join(parts)


def main():
    status = 0
    for name, sections in MANUALS.items():
        manual = pathlib.Path(os.environ["SLUICE_SOURCE"]) / "docs" / name
        found = manual.read_text()
        expected = found.split(MARKER)[0] + reference(sections)
        if found == expected:
            continue
        if "--write" in sys.argv[1:]:
            manual.write_text(expected)
            continue
        sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), expected.splitlines(True), f"docs/{name}", "--help"))
        print(f"docs/{name} is older than the programs' help; renew it: tests/end-to-end/cli_manual.py --write")
        status = 1
    return status


sys.exit(main())
