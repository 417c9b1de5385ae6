"""The agent as a program over the simulated cards: who may do what, one arbiter per card, death and restart, leaving,
and the metrics port read by the Prometheus project's own parser."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request

BUILD = pathlib.Path(os.environ["SLUICE_BUILD"])
SOURCE = pathlib.Path(os.environ["SLUICE_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "clients"))
sys.dont_write_bytecode = True

import environment  # noqa: E402

NOBODY = 65534
OTHER_AGENT = 3  # exit code
USAGE = 2
FAKE = BUILD / "tests" / "agent_fake_program"


class Refusal(Exception):
    """An error answer of the agent."""


class Connection:
    def __init__(self, run):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(f"{run}/agent.sock")
        self.file = self.socket.makefile("r")
        self.id = 0
        self.hello = self.call("hello")

    def call(self, op, **arguments):
        self.id += 1
        # Whoever is turned away is told why, perhaps before having asked.
        with contextlib.suppress(BrokenPipeError):
            self.socket.sendall(json.dumps({"sluice": 1, "id": self.id, "op": op, "arguments": arguments}).encode() + b"\n")
        answer = json.loads(self.file.readline())
        if "error" in answer:
            raise Refusal(answer["error"]["code"] + ": " + answer["error"]["message"])
        assert answer["id"] == self.id
        return answer["result"]


class Machine:
    """Simulated cards in a folder of their own, and the agents that a test starts on them."""

    def __init__(self, folder, cards=1):
        self.folder = folder
        self.started = []
        create = [BUILD / "bin" / "sluice-sim", "create", folder / "cards", "--card", "V100-SXM2-32GB"]
        for i in range(cards):
            subprocess.run(create + ["--seed", str(int.from_bytes(os.urandom(4), "little"))], check=True, stdout=subprocess.DEVNULL)
        for path in [folder, *(folder / "cards").rglob("*"), folder / "cards"]:
            path.chmod(path.stat().st_mode | 0o755 | (0o666 if path.is_file() else 0o777) if path != folder else 0o755)
        self.environment = {**os.environ, "SLUICE_SIM_DIR": str(folder / "cards"), "LD_LIBRARY_PATH": str(BUILD / "sim")}

    def start(self, run, *options, uid=None):
        """An agent that says it is ready, or its error."""
        read, write = os.pipe()
        os.set_inheritable(write, True)
        command = [str(BUILD / "bin" / "sluice-agent"), "--run-dir", str(run), "--ready-fd", str(write), *options]
        with open(self.folder / "agent.log", "a") as log:
            process = subprocess.Popen(command, env=self.environment, pass_fds=[write], stderr=log, user=uid,
                                       group=uid, extra_groups=[] if uid is not None else None)
        os.close(write)
        self.started.append(process)
        with os.fdopen(read) as report:
            return process, report.read().strip()

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for line in pathlib.Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(str(self.folder) + "/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)


@contextlib.contextmanager
def machine(cards=1):
    with tempfile.TemporaryDirectory(prefix="sluice-agent-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = Machine(pathlib.Path(folder), cards)
        try:
            yield made
        except BaseException:
            print((pathlib.Path(folder) / "agent.log").read_text()[-4000:])
            raise
        finally:
            made.stop()


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, Refusal):
            if condition():
                return True
        time.sleep(0.02)
    return False


def program(usage_file, reserved_mib=100):
    """The stand-in program, holding a slot."""
    process = subprocess.Popen([FAKE, usage_file, "0", "0", str(reserved_mib)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("ready"), "the stand-in program did not start"
    return process


def refused(text, call, *arguments, **members):
    try:
        call(*arguments, **members)
    except Refusal as refusal:
        assert text in str(refusal), f"'{text}' is not in: {refusal}"
        return
    raise AssertionError(f"was not refused: {arguments} {members}")


def test_metrics_are_what_prometheus_reads():
    packages = environment.ensure(SOURCE / "tests" / "agent" / "requirements.txt")
    sys.path.insert(0, str(environment.site_packages(packages)))
    from prometheus_client.parser import text_string_to_metric_families

    with machine(cards=2) as m:
        run = m.folder / "run"
        process, report = m.start(run, "--metrics", "127.0.0.1:0")
        assert report == "ok", report
        port = int(re.search(r"metrics are served.*port=(\d+)", (m.folder / "agent.log").read_text()).group(1))
        agent = Connection(run)
        granted = agent.call("grant", name='na"me\\', gpu_mem_units=10, core_percent=30)
        held = program(granted["usage_file"])
        time.sleep(0.2)
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        series, families = {}, {}
        for family in text_string_to_metric_families(text):
            assert family.name not in families, f"{family.name} stands in two places"
            assert family.documentation and family.type in ("gauge", "counter"), family
            families[family.name] = family
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in series, f"{key} stands twice"
                series[key] = sample.value
        value = {name: number for (name, labels), number in series.items() if ("container", 'na"me\\') in labels}
        assert value["DCGM_CUSTOM_CONTAINER_CP_ALLOCATED"] == 0.3, value
        assert value["DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"] == 10487, value
        by_card = {dict(labels)["gpu"]: number for (name, labels), number in series.items() if name == "DCGM_CUSTOM_ALLOCATE_MODE"}
        assert sorted(by_card.values()) == [0, 2], by_card
        assert sum(1 for name, _ in series if name == "DCGM_CUSTOM_DEV_FB_TOTAL") == 2
        held.kill()
        held.wait()
        # It stays although nobody needs it: somebody scrapes it.
        process.terminate()
        assert process.wait(10) == 0


def as_user(uid, function, *arguments):
    """Runs a function as another user in a child; its exception becomes this one's."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            function(*arguments)
            os._exit(0)
        except BaseException as problem:  # noqa: B902
            print(f"as uid {uid}: {problem!r}", file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"{function.__name__} failed as uid {uid}"


def test_a_root_agent_serves_all_users_each_for_himself():
    with machine() as m:
        run = m.folder / "run"
        _, report = m.start(run)
        assert report == "ok", report
        assert stat.S_IMODE((run / "agent.sock").stat().st_mode) == 0o666
        root = Connection(run)
        mine = root.call("grant", name="root's", gpu_mem_units=10, core_percent=30)

        def look_from_outside():
            agent = Connection(run)
            own = agent.call("grant", name="nobody's", gpu_mem_units=5, core_percent=20, weight=9)
            assert any("--allow-priority" in note for note in own["notes"]), own["notes"]
            with open(own["usage_file"], "r+b") as usage:  # what its programs need
                usage.read(16)
            with open(own["grant_directory"] + "/page", "rb") as page:
                assert page.read(8) == b"SLCGRNT1"
            for path in (own["grant_directory"] + "/page", own["grant_directory"] + "/new", mine["usage_file"]):
                try:
                    os.open(path, os.O_RDWR | os.O_CREAT)
                except PermissionError:
                    continue
                raise AssertionError(f"uid {os.getuid()} could open {path} for writing")
            refused("permission: grant", agent.call, "set", grant=mine["id"], core_percent=5)
            refused("permission: grant", agent.call, "release", grant="root's", force=True)
            refused("permission: ", agent.call, "set-policy", policy=4)
            refused("permission: ", agent.call, "shutdown")
            refused("permission: ", agent.call, "grant", gpu_mem_units=1, core_percent=5, runner_pid=os.getppid())
            listed = {grant["name"]: grant for grant in agent.call("list")["grants"]}
            assert listed["root's"]["processes"] == []
            assert agent.call("set", grant="nobody's", core_percent=25)["cards"][0]["core_percent"] == 25

        as_user(NOBODY, look_from_outside)
        assert eventually(lambda: len(root.call("list")["grants"]) == 1), "the other user's grant ends with its process"


def test_one_arbiter_per_card_and_users_without_root():
    with machine() as m:
        run = m.folder / "run"
        (m.folder / "own").mkdir()
        os.chown(m.folder / "own", NOBODY, NOBODY)
        (m.folder / "own").chmod(0o700)
        _, report = m.start(run)
        assert report == "ok", report
        process, report = m.start(m.folder / "own", uid=NOBODY)
        assert "already has an arbiter: agent with pid" in report, report
        assert process.wait(10) == OTHER_AGENT
        Connection(run).call("shutdown")
        m.started[0].wait(10)
        _, report = m.start(m.folder / "own", uid=NOBODY)
        assert report == "ok", report
        assert stat.S_IMODE((m.folder / "own" / "agent.sock").stat().st_mode) == 0o600
        (m.folder / "own").chmod(0o755)  # even then
        (m.folder / "own" / "agent.sock").chmod(0o666)

        def ask_another_users_agent():
            refused("permission: this agent serves uid 65534 alone", Connection, m.folder / "own")

        as_user(1, ask_another_users_agent)


def test_a_killed_agent_is_followed_by_one_that_knows_its_programs():
    with machine() as m:
        run = m.folder / "run"
        process, report = m.start(run)
        assert report == "ok", report
        second, report = m.start(run)
        assert f"another agent (pid {process.pid}) serves" in report and second.wait(10) == OTHER_AGENT, report
        agent = Connection(run)
        granted = agent.call("grant", name="kept", gpu_mem_units=10, core_percent=30)
        agent.call("set", grant="kept", core_percent=45)
        held = program(granted["usage_file"], 512)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (run / "agent.sock").exists(), "a killed agent leaves its socket; the next one has to cope"
        held.stdin.write("reserve 700\n")
        held.stdin.flush()
        _, report = m.start(run)
        assert report == "ok", report
        agent = Connection(run)

        def taken_over():
            grants = agent.call("list")["grants"]
            return grants and grants[0]["processes"] and grants[0]["processes"][0]["reserved_mib"] == 700

        assert eventually(taken_over), agent.call("list")
        grant = agent.call("list")["grants"][0]
        assert grant["taken_over"] and grant["id"] == granted["id"] and grant["cards"][0]["core_percent"] == 45, grant
        refused("exhausted: ", agent.call, "grant", gpu_mem_units=22, core_percent=5)
        killed = time.monotonic()
        held.kill()
        held.wait()
        # This process is the runner that the record names: the grant stays, the dead process's bytes do not.
        assert eventually(lambda: agent.call("list")["grants"][0]["use"][0]["reserved_mib"] == 0, 3)
        print(f"a dead program's 700 MiB were free after {time.monotonic() - killed:.3f} s")
        agent.call("release", grant="kept")
        assert agent.call("list")["grants"] == []
        assert list((run / "records").iterdir()) == [] and list((run / "grants").iterdir()) == []


def test_an_idle_agent_leaves_and_takes_its_socket_along():
    with machine() as m:
        run = m.folder / "run"
        process, report = m.start(run, "--idle-seconds", "1")
        assert report == "ok", report
        agent = Connection(run)
        time.sleep(1.5)
        assert process.poll() is None, "somebody is connected"
        agent.file.close()
        agent.socket.close()
        assert process.wait(10) == 0
        assert not (run / "agent.sock").exists()


def test_bad_states_are_one_sentence():
    with machine() as m:
        run = m.folder / "run"
        run.mkdir()
        run.chmod(0o777)
        _, report = m.start(run)
        assert "can be written by others" in report, report
        run.chmod(0o755)
        _, report = m.start(run, "--driver-dir", "/nowhere")
        assert report.startswith("error not-found no card: the driver's libnvidia-ml.so.1 is not on this machine"), report
        process, report = m.start(run, "--metrics", "here")
        assert report == "" and process.wait(10) == USAGE, report
        assert "expected IP:PORT" in (m.folder / "agent.log").read_text()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            process, report = m.start(run, "--metrics", f"127.0.0.1:{taken.getsockname()[1]}")
            assert "another program has this port" in report and "another agent" not in report, report
            assert process.wait(10) == 1
        _, report = m.start("/dev/null/run")
        assert report.startswith("error "), report
        (m.folder / "empty").mkdir()
        m.environment["SLUICE_SIM_DIR"] = str(m.folder / "empty")
        _, report = m.start(run)
        assert "no card" in report, report


def main():
    if os.geteuid() != 0:
        print("needs root to be several users")
        return 77
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            started = time.monotonic()
            test()
            print(f"{name}: ok, {time.monotonic() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
