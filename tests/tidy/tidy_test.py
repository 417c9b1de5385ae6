"""Runs every check of tidy_checks.py over the tracked files of the source folder; prints findings, ends with 1 if any.

The source folder is $SLUICE_SOURCE, else the repository this file lies in.
"""

import os
import pathlib
import sys

import tidy_checks


def main() -> int:
    root = pathlib.Path(os.environ.get("SLUICE_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
    if not (root / ".git").exists():
        print("tidy: skipped, the source folder is not a git checkout")
        return 77
    tree = tidy_checks.tracked(root)
    table = tidy_checks.read_layers(root / "tests/tidy/layers.txt")
    findings = tidy_checks.include_graph(tree, table) + tidy_checks.include_cycles(table)
    for check in tidy_checks.CHECKS.values():
        findings += check(tree)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(tree.files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
