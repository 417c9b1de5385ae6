"""Shows that each tidy check can fail: one planted fault per rule in a scratch tree must be found, and its mended form
must not. A lint that never finds anything would pass every other test."""

import pathlib
import tempfile
import unittest

import tidy_checks

OPENING = "// Says what problem this solves.\n"


class TidyChecks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def tree(self, **files):
        names = []
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            names.append(name)
        return tidy_checks.Tree(self.root, tuple(names))

    def one(self, check, name, bad, good):
        found = check(self.tree(**{name: bad}))
        self.assertEqual(len(found), 1, f"{name}: {found}")
        self.assertTrue(found[0].startswith(name + ":"), found)
        self.assertEqual(check(self.tree(**{name: good})), [])

    def test_file_length(self):
        self.one(tidy_checks.file_length, "src/core/a.cc", OPENING * 601, OPENING * 600)
        self.assertEqual(tidy_checks.file_length(self.tree(**{"src/core/a_test.cc": OPENING * 900})), [])

    def test_opening_comment(self):
        self.one(tidy_checks.opening_comment, "src/core/z.h", "#pragma once\n", OPENING + "#pragma once\n")
        self.one(tidy_checks.opening_comment, "script/a", "#!/bin/sh\ntrue\n", "#!/bin/sh\n# Does it.\ntrue\n")
        self.one(tidy_checks.opening_comment, "tests/a.py", "import os\n", '"""Does it."""\n')

    def test_words(self):
        for word in tidy_checks.FORBIDDEN_WORDS:
            self.one(tidy_checks.words, "src/core/a.cc", OPENING + f"// {word}: later\n", OPENING)
        for line in ("see issue 12", "/wor" + "k/main/x", "https://pypi" + ".org/x"):
            self.one(tidy_checks.words, "docs/a.md", line + "\n", "see there\n")
        self.assertEqual(tidy_checks.words(self.tree(**{"docs/a.md": "an issue; hacking; before nowhere\n"})), [])

    def test_stray_characters(self):
        self.one(tidy_checks.stray_characters, "src/core/a.cc", OPENING + "int a; \n", OPENING + "int a;\n")
        self.one(tidy_checks.stray_characters, "src/core/b.cc", OPENING + "\tint a;\n", OPENING)
        self.one(tidy_checks.stray_characters, "src/core/c.cc", OPENING + "int a;", OPENING)
        self.one(tidy_checks.stray_characters, "script/x.sh", "# " + "x" * 200 + "\n", "# x\n")

    def test_include_guard(self):
        self.one(tidy_checks.include_guard, "src/core/a.h", OPENING, OPENING + "#pragma once\n")

    def test_include_graph(self):
        table = {"base": set(), "core": {"base"}, "guest": set()}
        def check(tree):
            return tidy_checks.include_graph(tree, table)
        self.one(check, "src/guest/a.cc", '#include "base/result.h"\n', '#include "guest/b.h"\n')
        self.assertEqual(check(self.tree(**{"src/core/a.cc": '#include "base/result.h"\n'})), [])
        self.assertEqual(check(self.tree(**{"src/guest/a_test.cc": '#include "base/result.h"\n'})), [])
        self.assertEqual(len(check(self.tree(**{"src/unknown/a.cc": OPENING}))), 1)

    def test_include_cycles(self):
        self.assertEqual(tidy_checks.include_cycles({"a": {"b"}, "b": set()}), [])
        self.assertEqual(len(tidy_checks.include_cycles({"a": {"b"}, "b": {"a"}})), 1)

    def test_broken_links(self):
        self.one(tidy_checks.broken_links, "docs/a.md", "[x](missing.md)\n", "[x](a.md)\n")
        self.one(tidy_checks.broken_links, "docs/b.md", "# The head\n[x](#the-tail)\n", "# The head\n[x](#the-head)\n")
        self.assertEqual(tidy_checks.broken_links(self.tree(**{"docs/c.md": "`[x](y)` [x](https://a.example/)\n"})), [])

    def test_formatting(self):
        (self.root / ".clang-format").write_text("BasedOnStyle: Google\nColumnLimit: 120\n")
        self.one(tidy_checks.formatting, "src/core/a.cc", OPENING + "int   a ;\n", OPENING + "int a;\n")

    def test_scripts(self):
        def check(tree):
            for name in tree.files:
                (self.root / name).chmod(0o755)
            return tidy_checks.executable_scripts(tree)
        self.one(check, "script/a", "#!/usr/bin/env bash\nif true\n", "#!/usr/bin/env bash\ntrue\n")
        tree = self.tree(**{"script/b": "#!/usr/bin/env bash\ntrue\n"})
        (self.root / "script/b").chmod(0o644)
        self.assertEqual(len(tidy_checks.executable_scripts(tree)), 1)


if __name__ == "__main__":
    unittest.main()
