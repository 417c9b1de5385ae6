"""What the demonstration claims, as pure functions over the card's own log and the readings of nvidia-smi.

Busy time is a BusyLog: occupied nanoseconds of the card in bins of one millisecond, as the simulated card logs it.
Times are nanoseconds of the host's monotonic clock throughout.
"""

import dataclasses

MS = 1_000_000
SECOND = 1_000_000_000
READING_AGE_NS = 200 * MS


@dataclasses.dataclass
class BusyLog:
    """first_ns: host time at which bin 0 begins; occupied_ns[i]: how long the card was occupied in bin i (0 to 1e6)."""
    first_ns: int
    occupied_ns: list

    def __post_init__(self):
        self.sums = [0]
        for occupied in self.occupied_ns:
            self.sums.append(self.sums[-1] + occupied)

    def until(self, t_ns):
        """Occupied time from the beginning to t_ns, taking busy time as even within a bin."""
        position = (t_ns - self.first_ns) / MS
        if position <= 0:
            return 0.0
        whole = min(int(position), len(self.occupied_ns))
        rest = position - whole
        part = self.occupied_ns[whole] * rest if whole < len(self.occupied_ns) else 0.0
        return self.sums[whole] + part

    def percent(self, from_ns, to_ns):
        """Share of the stretch that the card was occupied, in percent."""
        return 100 * (self.until(to_ns) - self.until(from_ns)) / (to_ns - from_ns)


@dataclasses.dataclass(frozen=True)
class Reading:
    """One answer of nvidia-smi: when it was asked and had answered, and what it said."""
    asked_ns: int
    answered_ns: int
    utilisation_percent: int
    memory_total_mib: int
    memory_used_mib: int


@dataclasses.dataclass(frozen=True)
class Claim:
    """One line of the demonstration's verdict."""
    text: str
    holds: bool


def windows(log, from_ns, to_ns, length_ns, step_ns):
    """Percent of every window of length_ns that lies in the stretch, moved by step_ns."""
    result, start = [], from_ns
    while start + length_ns <= to_ns:
        result.append(log.percent(start, start + length_ns))
        start += step_ns
    return result


def reading_error(log, reading):
    """How far a reading is from the log: the least difference to the busy share of any second that ended while nvidia-smi
    was at work or READING_AGE_NS before (the figure is renewed ten times a second), beyond half a point for its rounding
    to whole percent."""
    best, end = float("inf"), reading.asked_ns - READING_AGE_NS
    while end <= reading.answered_ns + MS:
        best = min(best, abs(log.percent(end - SECOND, end) - reading.utilisation_percent))
        end += MS
    return max(0.0, best - 0.5)


def memory_limit_mib(card_mib, units):
    """What a container of so many GiB sees of a card: floor(card MiB x units / units of the card)."""
    return card_mib * units // (card_mib // 1024)


def judge_shared(log, readings, from_ns, to_ns, core_percent, card_mib, mem_units):
    """The claims about the pod with the share: its mean, every 5 seconds, its memory, each reading."""
    mean = log.percent(from_ns, to_ns)
    fives = windows(log, from_ns, to_ns, 5 * SECOND, SECOND // 10)
    worst = max(fives, key=lambda value: abs(value - core_percent), default=mean)
    seconds = (to_ns - from_ns) / SECOND
    return [
        Claim(f"shared pod: mean of {seconds:.0f} s {mean:.2f} %, asked {core_percent} (+- 1)",
              abs(mean - core_percent) <= 1),
        Claim(f"shared pod: worst 5 s {worst:.2f} %, asked {core_percent} (+- 3)", abs(worst - core_percent) <= 3),
        judge_memory("shared pod", readings, memory_limit_mib(card_mib, mem_units)),
        judge_readings("shared pod", log, readings),
    ]


def judge_exclusive(log, readings, from_ns, to_ns, card_mib):
    """The claims about the pod with a card of its own: about 91 percent busy, all the memory, each reading."""
    mean = log.percent(from_ns, to_ns)
    return [
        Claim(f"exclusive pod: mean {mean:.2f} %, about 91 expected (88 to 94)", 88 <= mean <= 94),
        judge_memory("exclusive pod", readings, card_mib),
        judge_readings("exclusive pod", log, readings),
    ]


def judge_memory(pod, readings, expected_mib):
    seen = sorted({reading.memory_total_mib for reading in readings})
    return Claim(f"{pod}: nvidia-smi shows {'/'.join(map(str, seen)) or 'no'} MiB of memory, expected {expected_mib}",
                 seen == [expected_mib])


def judge_readings(pod, log, readings):
    errors = [reading_error(log, reading) for reading in readings]
    worst = max(errors, default=float("inf"))
    return Claim(f"{pod}: {len(readings)} readings of nvidia-smi, farthest from the card's log by {worst:.2f} points "
                 "(at most 1)", bool(readings) and worst <= 1)
