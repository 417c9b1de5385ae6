"""The demonstration's verdict over made-up logs: what holds is accepted, each way of missing it is noticed."""

import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("SLUICE_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "script/lib"))

import demo_check  # noqa: E402

MS, SECOND = demo_check.MS, demo_check.SECOND
START = 5 * SECOND


def log_of(percent_per_second):
    """A card that is busy for the first part of every 10 ms, by the percent given for each second."""
    bins = []
    for percent in percent_per_second:
        busy = percent / 10  # ms of each 10 ms
        pattern = [int(MS * min(1, max(0, busy - ms))) for ms in range(10)]
        bins += pattern * 100
    return demo_check.BusyLog(START, bins)


def reading(second, percent, total=10487):
    asked = START + second * SECOND
    return demo_check.Reading(asked, asked + 30 * MS, percent, total, 7000)


def verdict(claims):
    return [claim.holds for claim in claims]


class DemoCheck(unittest.TestCase):
    def shared(self, percents, readings=None, core=30, units=10):
        readings = [reading(5, 30), reading(7, 30)] if readings is None else readings
        return verdict(demo_check.judge_shared(log_of(percents), readings, START + 2 * SECOND,
                                               START + len(percents) * SECOND, core, 32510, units))

    def test_what_holds(self):
        self.assertEqual(self.shared([30] * 20), [True] * 4)
        exclusive = demo_check.judge_exclusive(log_of([91] * 20), [reading(5, 91, 32510)], START + 2 * SECOND,
                                               START + 20 * SECOND, 32510)
        self.assertEqual(verdict(exclusive), [True] * 3)

    def test_mean_off_by_more_than_one(self):
        self.assertEqual(self.shared([31.5] * 20, [reading(5, 31)])[:2], [False, True])
        self.assertEqual(self.shared([28.5] * 20, [reading(5, 28)])[0], False)

    def test_five_seconds_off_by_more_than_three(self):
        holds = self.shared([30] * 10 + [36] * 5 + [24] * 5)
        self.assertEqual(holds[:2], [True, False])

    def test_wrong_memory(self):
        self.assertEqual(self.shared([30] * 20, [reading(5, 30, 32510)])[2], False)
        self.assertEqual(self.shared([30] * 20, [])[2:], [False, False])

    def test_reading_off_by_more_than_one(self):
        self.assertEqual(self.shared([30] * 20, [reading(5, 30), reading(8, 33)])[3], False)
        self.assertEqual(self.shared([30] * 20, [reading(5, 31)])[3], True)

    def test_exclusive_card_that_idles(self):
        claims = demo_check.judge_exclusive(log_of([80] * 20), [reading(5, 80, 32510)], START + 2 * SECOND,
                                            START + 20 * SECOND, 32510)
        self.assertEqual(verdict(claims), [False, True, True])

    def test_memory_limit(self):
        self.assertEqual(demo_check.memory_limit_mib(32510, 10), 10487)
        self.assertEqual(demo_check.memory_limit_mib(32510, 7), 7340)
        self.assertEqual(demo_check.memory_limit_mib(32510, 31), 32510)

    def test_percent_of_parts_of_bins(self):
        log = demo_check.BusyLog(0, [MS, 0])
        self.assertAlmostEqual(log.percent(0, 2 * MS), 50)
        self.assertAlmostEqual(log.percent(MS // 2, 3 * MS // 2), 50)
        self.assertAlmostEqual(log.percent(MS, 2 * MS), 0)


if __name__ == "__main__":
    unittest.main()
