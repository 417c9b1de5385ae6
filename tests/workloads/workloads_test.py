"""The workloads over a driver with nothing behind it: each prints one line of JSON and nothing else, binds in every way
of the zoo, and says in one sentence what is wrong with its options, its driver or a failed call."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["SLUICE_BUILD"])
WORKLOADS = BUILD / "bin/workloads"
NULL_DRIVER = BUILD / "null_driver"
PROGRAMS = {
    "train": [], "infer": ["--rate", "200"], "llm": ["--nodes", "50"], "long_kernels": [], "tiny_kernels": [],
    "multi_stream": [], "ranks": ["--ranks", "2"], "collective": ["--cards", "1"], "alloc_torture": [],
}


def run(program, *arguments, library_path=str(NULL_DRIVER)):
    environment = dict(os.environ, LD_LIBRARY_PATH=library_path)
    return subprocess.run([WORKLOADS / program, *arguments], env=environment, capture_output=True, text=True,
                          timeout=60, check=False)


class Workloads(unittest.TestCase):
    def test_one_line_of_json_and_nothing_else(self):
        for program, options in PROGRAMS.items():
            result = run(program, "--seconds", "0.1", "--json", *options)
            self.assertEqual((result.returncode, result.stderr), (0, ""), program)
            self.assertEqual(result.stdout.count("\n"), 1, program)
            self.assertEqual(json.loads(result.stdout)["workload"], program)

    def test_variants(self):
        for program, options in [("llm", ["--build", "nodes"]), ("collective", ["--cards", "1", "--wait", "kernel"]),
                                 ("tiny_kernels", ["--threads", "3", "--per-thread"]),
                                 ("infer", ["--workers", "3"]), ("long_kernels", ["--work-ms", "10", "--pause-ms", "20"]),
                                 ("train", ["--ahead", "0", "--steps", "3"])]:
            result = run(program, "--seconds", "0.1", "--json", *options)
            self.assertEqual((result.returncode, result.stderr), (0, ""), f"{program} {options}")

    def test_training_counts_its_steps(self):
        result = json.loads(run("train", "--seconds", "5", "--steps", "3", "--json", "--host-ms", "0").stdout)
        self.assertEqual(result["steps"], 3)

    def test_wrong_options(self):
        for program in PROGRAMS:
            result = run(program, "--seconds", "-1")
            self.assertEqual((result.returncode, result.stdout), (2, ""), program)
            self.assertIn("--seconds", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, program)

    def test_no_driver(self):
        with tempfile.TemporaryDirectory() as empty:
            result = run("train", "--seconds", "0.1", library_path=empty)
        if result.returncode == 0:
            self.skipTest("a driver is installed")
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertIn("libcuda.so.1", result.stderr)

    def test_no_such_card(self):
        result = run("train", "--device", "5")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "train: --device 5: there is 1 card, numbered from 0\n"))

    def test_allocations_cover_every_kind(self):
        kinds = [line.split("\t") for line in run("alloc_torture", "--list").stdout.splitlines()]
        device = [name for kind, name in kinds if kind in ("device", "managed", "code", "heap")]
        self.assertGreaterEqual(len(device), 30)
        self.assertEqual({kind for kind, _ in kinds},
                         {"device", "managed", "code", "heap", "context", "host", "address"})
        calls = json.loads(run("alloc_torture", "--call", "cuMemCreate", "--json").stdout)["calls"]
        self.assertTrue(calls and all(call["name"].startswith("cuMemCreate") for call in calls))

    def test_every_way_of_binding(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("libcuda.so.1", "libcuda.so"):
                os.symlink(NULL_DRIVER / "libcuda.so.1", f"{folder}/{name}")
            result = run("binder_zoo", "--json", "--size-mib", "8", library_path=folder)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        ways = json.loads(result.stdout)["ways"]
        self.assertGreaterEqual(len(ways), 20)
        for way in ways:
            self.assertEqual((way["code"], way.get("total_mib"), way.get("allocate_code")), (0, 32510, 0), way)

    def test_stub_is_what_programs_link_but_never_run_with(self):
        for program in ("binder_linked", "binder_next", "libbinder_plugin.so"):
            dynamic = subprocess.run(["readelf", "-d", WORKLOADS / program], capture_output=True, text=True,
                                     check=True).stdout
            self.assertIn("[libcuda.so.1]", dynamic)
            self.assertNotIn("stub", dynamic)


if __name__ == "__main__":
    unittest.main()
