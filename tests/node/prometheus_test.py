#!/usr/bin/env python3
"""Metrics judged by Prometheus itself: promtool reads the text, a real server scrapes it as docs/metrics.md says, keeps the
pods' labels, and answers the manual's queries; the manual's alerts are rules that it accepts."""

import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

BUILD = Path(os.environ["SLUICE_BUILD"])
SOURCE = Path(os.environ["SLUICE_SOURCE"])
PRINT = BUILD / "tests" / "print_node_metrics"
MANUAL = (SOURCE / "docs" / "metrics.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", MANUAL, re.DOTALL)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def promtool(*arguments, text=None):
    return subprocess.run(["promtool", *arguments], input=text, text=True, capture_output=True, timeout=60)


class Node:
    """Serves the text of a made-up node; `used_mib` may change between scrapes."""

    def __init__(self):
        self.used_mib = 1000
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = subprocess.run([PRINT, str(node.used_mib)], capture_output=True, check=True).stdout
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Prometheus:
    def __init__(self, folder, targets):
        """targets: job -> "host:port". Every target carries the labels that a discovered pod of the agent has."""
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": [
                {"targets": [target],
                 "labels": {"namespace": "sluice-system", "pod": "sluice-agent-x", "container": "agent"}}]}
            for job, target in targets.items()]}
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        (folder / "rules.yaml").write_text(blocks("yaml")[0])
        checked = promtool("check", "config", str(folder / "prometheus.yaml"))
        assert checked.returncode == 0 and "4 rules found" in checked.stdout, checked.stdout + checked.stderr
        self.log = open(folder / "prometheus.log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.url[7:]}", "--log.level=warn"], stdout=self.log, stderr=self.log)

    def get(self, path, **query):
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def query(self, text):
        answer = self.get("/api/v1/query", query=text)
        assert answer["status"] == "success", answer
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def value(self, text):
        found = self.query(text)
        assert len(found) == 1, f"{text}: {found}"
        return found[0][1]

    def wait(self, text, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.query(text):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        targets = self.get("/api/v1/targets")["data"]["activeTargets"]
        raise AssertionError(f"not within {seconds} s: {text}; {[(t['scrapeUrl'], t['lastError']) for t in targets]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)
        self.log.close()


def text_is_sound():
    text = subprocess.run([PRINT], capture_output=True, check=True, text=True).stdout
    checked = promtool("check", "metrics", text=text)
    # Its taste differs from the names that are ACK's and NVIDIA's; about ours it has nothing to say.
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines()
                  if line.startswith("sluice_") and "modelName" not in line and "camelCase" not in line]
    assert checked.returncode in (0, 3) and not complaints, checked.stdout + checked.stderr
    print("ok    promtool reads the text and finds nothing odd about our names")


def values_arrive(server, node):
    server.wait('up{job="sluice-agent"} == 1')
    server.wait("sluice_enforced")
    tf = '{namespace="default",pod="tf-benchmarks",container="tf"}'
    assert server.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED" + tf) == 0.3
    assert server.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED" + tf) == 10487
    assert abs(server.value('DCGM_CUSTOM_DEV_FB_ALLOCATED{node="node-b",gpu="0"}') - 10 / 31) < 1e-9
    assert server.value('DCGM_CUSTOM_ALLOCATE_MODE{node="node-b"}') == 2
    assert server.value("sluice_enforced" + tf) == 1
    assert server.value('sluice_enforced{pod="pair",container="y"}') == 0
    assert server.value('sluice_not_enforced_info{pod="pair",reason="the container waits for its grant"}') == 1
    assert server.value("DCGM_CUSTOM_PROCESS_SM_UTIL" + tf) == 30.5
    # honor_labels: the labels are those of the pods that hold cards, not those of the agent's own pod.
    assert not server.query('{__name__=~"sluice_container_.*",pod="sluice-agent-x"}')
    assert not server.query('{exported_pod=~".+"}')
    node.used_mib = 2000
    server.wait(f"sluice_container_memory_used_mib{tf} == 2000")
    families = {item["metric"]["__name__"] for item in server.get(
        "/api/v1/query", query='{job="sluice-agent",__name__=~"sluice_.*|DCGM_.*"}')["data"]["result"]}
    unnamed = {name for name in families if name not in MANUAL and not name.startswith("sluice_agent_")
               and not (name.startswith("DCGM_CUSTOM_PROCESS_") and name.removeprefix("DCGM_CUSTOM_PROCESS") in MANUAL)}
    assert not unnamed, f"not in docs/metrics.md: {unnamed}"
    print(f"ok    a Prometheus scrapes {len(families)} families, with the pods' own labels")


def queries_of_the_manual(server):
    asked = [line for block in blocks("promql") for line in block.splitlines() if line.strip()]
    assert len(asked) >= 7, asked
    time.sleep(2.5)  # a rate needs two scrapes
    for query in asked:
        assert server.query(query), f"{query}: nothing"
    assert dict((m["pod"], v) for m, v in server.query(asked[0])) == {"tf-benchmarks": 0.3, "pair": 0.2}
    assert dict((m["gpu"], v) for m, v in server.query(asked[1])) == {"0": 0.3, "1": 0.2}
    deadline = time.monotonic() + 60
    alerts = set()
    while time.monotonic() < deadline and not {"SluiceLimitsNotInForce"} <= alerts:
        alerts = {alert["labels"]["alertname"] for alert in server.get("/api/v1/alerts")["data"]["alerts"]}
        time.sleep(0.5)
    assert "SluiceLimitsNotInForce" in alerts and "SluiceCardLost" not in alerts, alerts
    print("ok    the manual's queries have answers, its alerts wait to fire")


def stand_alone_agent(folder):
    """An agent without Kubernetes, on a simulated card: the port to scrape, and its process."""
    cards = folder / "cards"
    subprocess.run([BUILD / "bin" / "sluice-sim", "create", cards, "--card", "V100-SXM2-32GB"], check=True, capture_output=True)
    (folder / "run").mkdir(mode=0o700)
    port = free_port()
    environment = {**os.environ, "SLUICE_SIM_DIR": str(cards), "LD_LIBRARY_PATH": str(BUILD / "sim")}
    log = open(folder / "agent.log", "w")
    process = subprocess.Popen([BUILD / "bin" / "sluice-agent", "--run-dir", folder / "run", "--card-lock-dir", folder / "run",
                                "--metrics", f"127.0.0.1:{port}"], env=environment, stdout=log, stderr=log)
    return port, process


def main():
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            print(f"skipped: {program} is missing; script/install-deps installs it")
            return 77
    text_is_sound()
    folder = Path(tempfile.mkdtemp(prefix="sluice-prometheus-"))
    node = Node()
    port, agent = stand_alone_agent(folder)
    server = Prometheus(folder, {"sluice-agent": f"127.0.0.1:{node.port}", "stand-alone": f"127.0.0.1:{port}"})
    try:
        values_arrive(server, node)
        server.wait('up{job="stand-alone"} == 1')
        assert server.value('DCGM_CUSTOM_DEV_FB_TOTAL{job="stand-alone"}') == 32510
        assert server.value('sluice_card_up{job="stand-alone"}') == 1
        print("ok    an agent without Kubernetes is scraped too")
        queries_of_the_manual(server)
    finally:
        server.stop()
        agent.terminate()
        agent.wait(timeout=20)
        node.server.shutdown()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
