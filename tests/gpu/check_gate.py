"""The gate end to end: caps on four kinds of programs, two containers on one card, and what is lost without a cap.

The truth is the simulated card's log there, GPM's counters where a card has them (Hopper and later), else the guest's own
busy time, with GPU-Util beside it. Windows are one second.
"""

import statistics
import threading
import time

from check_torch import without_torch
from containers import Containers

PERCENTS = (10, 30, 50, 95)
WARM_UP_S = 2.0


def loops(context):
    """(name, command without its seconds, seconds option, longest unit in ms)."""
    programs = context.build.programs
    driver = [
        ("1 ms kernels", [programs / "long_kernels", "--kernel-ms", 1, "--depth", 8], 1),
        ("5 us kernels", [programs / "tiny_kernels", "--kernel-us", 5], 0.005),
        ("graph of 1,000 kernels", [programs / "llm", "--nodes", 1000, "--node-us", 5, "--tokens", 1000000, "--prefill-ms", 0.1], 7),
        ("50 ms kernels", [programs / "long_kernels", "--kernel-ms", 50, "--depth", 2], 50),
    ]
    made = [(name, lambda seconds, words=words: [*words, "--device", context.machine.card, "--seconds", seconds, "--json"], unit)
            for name, words, unit in driver]
    if context.torch:
        for kind, unit in (("gemm", 1), ("small", 0.05), ("graph", 1)):
            made.append((f"PyTorch {kind}", lambda seconds, kind=kind:
                         context.python_program("torch_program.py", "loop", kind, seconds), unit))
    return made


class Watch:
    """Looks at the card for some seconds in windows of one: GPU-Util, GPM, the log."""

    def __init__(self, context, seconds):
        self.context, self.rates, self.gpm = context, [], []
        machine = context.machine
        self.from_ns, self.log_from = time.monotonic_ns(), machine.card_now_ms(context.tools) if machine.simulated else 0
        sample, end = machine.gpm_sample(), time.monotonic() + seconds
        window_end = time.monotonic() + 1
        while time.monotonic() < end:
            time.sleep(0.05)
            self.rates.append(machine.utilisation())
            if time.monotonic() >= window_end:
                window_end += 1
                following = machine.gpm_sample()
                if sample is not None and following is not None:
                    self.gpm.append(machine.gpm_between(sample, following)["graphics"])
                    machine.gpm_free(sample)
                    sample = following
        if sample is not None:
            machine.gpm_free(sample)
        self.to_ns = time.monotonic_ns()
        self.log_to = machine.card_now_ms(context.tools) if machine.simulated else 0

    def logged(self, pid=0):
        """Occupied percent per whole second by the simulated card's log, of one program or (0) of the card."""
        whole = (self.log_to - self.log_from) // 1000
        log = self.context.machine.card_log(self.context.tools, "--window", "1000", "--from", str(self.log_from),
                                            "--to", str(self.log_from + 1000 * whole))
        return [sum(p["occupied_percent"] for p in window["processes"] if p["pid"] == pid) for window in log["windows"]]

    def truth(self, node, name, pid=0):
        """(name of the source, percent per second)."""
        if self.context.machine.simulated:
            return "the card's log", self.logged(pid)
        if self.gpm and pid == 0:
            return "GPM", self.gpm
        return "the guest", node.busy_percent(name, self.from_ns, self.to_ns, 1_000_000_000)


def started(node, name, command):
    """A program whose output is read while it runs, so that it never waits for us."""
    program = node.start(name, command)
    program.texts = []
    program.reader = threading.Thread(target=lambda: program.texts.extend(program.communicate()), daemon=True)
    program.reader.start()
    return program


def ended(context, program, what):
    program.reader.join(timeout=120)
    if program.poll() is None:
        program.kill()  # what hangs must not disturb what follows
        program.wait()
    if program.returncode != 0:
        context.results.add("gate", what, f"exit {program.returncode}", "0", "failed", (program.texts or ["", ""])[1].strip()[-200:])
    return program.returncode == 0


def judge_share(context, what, source, windows, wanted, unit_ms, note):
    if not windows:
        context.results.add("gate", what, "no full window of a second", verdict="failed")
        return
    mean, worst = statistics.fmean(windows), max(abs(w - wanted) for w in windows)
    # One window may be off by a unit that straddles its end; the mean by one over the whole stretch.
    allowed = 1.0 if unit_ms <= 1 else 0.4 + unit_ms / 10
    mean_allowed = max(0.3, unit_ms / 10 / len(windows) + 0.1)
    context.timed("gate", what, worst <= allowed and abs(mean - wanted) <= mean_allowed,
                  mean <= wanted + 5 + unit_ms / 10, f"mean {mean:.2f} %, worst second off by {worst:.2f}",
                  f"{wanted:g} +- {mean_allowed:.1f}, seconds +- {allowed:.1f}", f"by {source}; {note}")


def check_caps(context):
    for name, command, unit_ms in loops(context):
        for percent in context.percents:
            what = f"{name} at {percent} %"
            with Containers(context, a=(0, percent * 10)) as node:
                start_s = context.torch_start_s if "PyTorch" in name else 0.5
                program = started(node, "a", command(context.seconds + WARM_UP_S + start_s))
                time.sleep(WARM_UP_S + start_s)
                watch = Watch(context, context.seconds)
                good = ended(context, program, what)
                guest = node.busy_percent("a", watch.from_ns, watch.to_ns)
                source, windows = watch.truth(node, "a")
            if good:
                judge_share(context, what, source, windows, percent, unit_ms,
                            f"guest {guest or 0:.2f} %, GPU-Util {statistics.fmean(watch.rates):.1f} %")
    without_torch(context, "gate", "GEMM, small kernels and graphs by PyTorch")


def check_pair(context):
    """70 + 30: each has its share by the guests' figures, and the card is full."""
    if context.way == "plain":
        context.results.skip("gate", "70 + 30", "two containers at once need mount namespaces, which are not allowed here")
        return
    by_name = {name: command for name, command, _ in loops(context)}
    first, second = ("PyTorch gemm", "PyTorch small") if context.torch else ("1 ms kernels", "5 us kernels")
    start_s = context.torch_start_s if context.torch else 0.5
    length = context.seconds + WARM_UP_S + start_s
    with Containers(context, a=(0, 700), b=(0, 300)) as node:
        programs = {name: started(node, name, by_name[kind](length)) for name, kind in (("a", first), ("b", second))}
        time.sleep(WARM_UP_S + start_s)
        watch = Watch(context, context.seconds)
        good = [ended(context, program, f"70 + 30, {name}") for name, program in programs.items()]
        turns = any(line["turns"] for line in node.lines)
        for name, wanted, kind in (("a", 70.0, first), ("b", 30.0, second)):
            source, windows = watch.truth(node, name, programs[name].pid)
            if all(good):
                judge_share(context, f"70 + 30: {kind}", source, windows, wanted, 1, f"turns in force: {turns}")
    if watch.gpm or context.machine.simulated:
        card = watch.logged() if context.machine.simulated else watch.gpm
        context.timed("gate", "70 + 30: the card in all", statistics.fmean(card) >= 99, statistics.fmean(card) <= 101,
                      f"{statistics.fmean(card):.2f} %", ">= 99 %")


def rate_of(context, done):
    answer = context.last_json(done.stdout) if done.returncode == 0 else {}
    return next((answer[key] for key in ("per_second", "kernels_per_second", "tokens_per_second") if key in answer), None)


def check_throughput(context):
    """Without a cap and at 100 %, against the driver alone; runs alternate, medians are compared."""
    for name, command, _ in loops(context):
        rates = {"alone": [], "no limit": [], "100 %": []}
        seconds = max(1, context.seconds / 3)
        for _ in range(context.rounds):
            rates["alone"].append(rate_of(context, context.run(command(seconds))))
            for text, permille in (("no limit", 0), ("100 %", 1000)):
                with Containers(context, a=(0, permille)) as node:
                    rates[text].append(rate_of(context, node.run("a", command(seconds))))
        if any(rate is None for list_ in rates.values() for rate in list_):
            context.results.add("throughput", name, "a program failed", verdict="failed")
            continue
        alone = statistics.median(rates["alone"])
        for text in ("no limit", "100 %"):
            ratio = 100 * statistics.median(rates[text]) / alone
            context.timed("throughput", f"{name}, {text}", ratio >= 99, ratio >= 20, f"{ratio:.2f} % of without", ">= 99 %",
                          f"{alone:.6g} per second without")


CHECKS = {"gate": [check_caps, check_pair], "throughput": [check_throughput]}
