"""The example manifests are valid for a real API server: checked against Kubernetes' published schemas, strictly (a field
that the schema does not know is an error), for an old and a new version; and shown able to fail."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["SLUICE_SOURCE"], "tests", "clients"))
import environment as environments  # noqa: E402  (tests/clients/environment.py)

VERSIONS = ("1.26", "1.37")


def valid(tool, path, version):
    result = subprocess.run([tool, "--strict", "-k", version, str(path)], capture_output=True, text=True)
    return result.returncode == 0, result.stdout + result.stderr


def main():
    source = pathlib.Path(os.environ["SLUICE_SOURCE"])
    environment = environments.ensure(pathlib.Path(__file__).with_name("requirements-examples.txt"))
    tool = str(environment / "bin" / "kubernetes-validate")
    examples = sorted((source / "examples").glob("*.yaml"))
    if not examples:
        sys.exit("no examples found")
    for version in VERSIONS:
        for example in examples:
            ok, text = valid(tool, example, version)
            if not ok:
                sys.exit(f"{example.name} is not valid for {version}:\n{text}")
    wrong = pathlib.Path(os.environ["SLUICE_BUILD"]) / "wrong-example.yaml"
    wrong.write_text(examples[0].read_text().replace("restartPolicy", "restartPolcy"))
    ok, _ = valid(tool, wrong, VERSIONS[-1])
    wrong.unlink()
    if ok:
        sys.exit("a misspelt field passes: this test shows nothing")
    print(f"{len(examples)} examples valid for {', '.join(VERSIONS)}")


main()
