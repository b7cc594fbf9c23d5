"""python3 -m unittest discover bench"""

import unittest

from harness import compare, figures


def runs(store, lock, measure, field, numbers, **fields):
    return [{"round": round, "store": store, "lock": lock, "measure": measure, field: number, **fields} for round, number in enumerate(numbers, 1)]


def data(ours, baseline, **fields):
    """Hand-overs of leasehold and of the baseline, by round."""
    both = (("leasehold", ours), ("baseline", baseline))
    return {"runs": [run for lock, numbers in both for run in runs("redis", lock, "handover", "per_s", numbers, waiters=16)], **fields}


def moved(old, new):
    return [change.moved() for change in compare.changes(old, new)]


class Changes(unittest.TestCase):
    old = data([90, 80, 85], [100, 100, 100])

    def test_a_slower_machine_is_no_change(self):
        self.assertEqual(moved(self.old, data([45, 40, 43], [50, 50, 50])), [0])

    def test_fewer_hand_overs_beyond_the_spread_are_worse(self):
        self.assertEqual(moved(self.old, data([60, 55, 65], [100, 100, 100])), [-1])

    def test_more_are_better(self):
        self.assertEqual(moved(self.old, data([110, 105, 115], [100, 100, 100])), [1])

    def test_a_round_within_the_old_spread_is_no_change(self):
        self.assertEqual(moved(self.old, data([60, 55, 81], [100, 100, 100])), [0])

    def test_a_move_below_the_threshold_is_no_change(self):
        narrow = data([100, 100, 100], [100, 100, 100])
        self.assertEqual(moved(narrow, data([95, 95, 95], [100, 100, 100])), [0])

    def test_a_longer_cycle_is_worse(self):
        cycles = lambda ours: {"runs": runs("etcd", "leasehold", "cycle", "p50_us", ours) + runs("etcd", "kazoo", "cycle", "p50_us", [10, 10, 10])}
        self.assertEqual(moved(cycles([12, 13, 12]), cycles([15, 16, 15])), [-1])
        self.assertEqual(moved(cycles([15, 16, 15]), cycles([12, 13, 12])), [1])

    def test_fewer_than_three_rounds_are_not_judged(self):
        new = data([10, 10], [100, 100])
        self.assertEqual(moved(self.old, new), [0])
        self.assertFalse(compare.changes(self.old, new)[0].judged())

    def test_rounds_are_paired(self):
        self.assertEqual(compare.ratios(data([10, 40], [20, 40]), "redis", "baseline", compare.MEASURES[3], 16), [0.5, 1])
        self.assertEqual(compare.ratios(data([10, 40], [20]), "redis", "baseline", compare.MEASURES[3], 16), [0.5])

    def test_other_numbers_of_waiters_are_not_mixed(self):
        both = data([90, 80, 85], [100, 100, 100])
        both["runs"] += [{**run, "waiters": 4, "per_s": 1} for run in both["runs"] if run["lock"] == "leasehold"]
        self.assertEqual(moved(self.old, both), [0])

    def test_nothing_in_common(self):
        self.assertEqual(compare.changes(self.old, {"runs": []}), [])

    def test_two_holders_are_told(self):
        self.assertEqual(compare.overlaps(self.old), [])
        broken = {"runs": runs("etcd", "leasehold", "handover", "per_s", [1], overlaps=2)}
        self.assertEqual(compare.overlaps(broken), ["etcd"])
        self.assertEqual(compare.overlaps({"runs": runs("etcd", "peer", "handover", "per_s", [1], overlaps=2)}), [])

    def test_missing_and_versions(self):
        new = data([1], [], versions={"redis": "8"})
        self.assertEqual(compare.missing(self.old, new), ["redis/baseline"])
        self.assertEqual(compare.other_versions(data([], [], versions={"redis": "7", "x": "1"}), new), {"redis": ("7", "8")})


class Figures(unittest.TestCase):
    def test_hand_overs(self):
        holds = [[(0, 1_000), (5_000, 6_000)], [[2_000, 4_000], [12_000, 13_000]]]
        found = figures.hand_overs(holds, 0, 10_000)
        self.assertEqual((found["most"], found["fewest"], found["overlaps"]), (2, 1, 0))
        self.assertEqual((found["per_s"], found["gap_p50_us"]), (300_000, 1.0))

    def test_overlaps_are_counted(self):
        self.assertEqual(figures.hand_overs([[(0, 3)], [(2, 4)]], 0, 10)["overlaps"], 1)

    def test_nothing_was_held(self):
        found = figures.hand_overs([[], []], 0, 1_000)
        self.assertEqual((found["per_s"], found["gap_p50_us"], found["gap_us"]), (0, None, []))

    def test_cycles(self):
        found = figures.cycles(range(1_000, 201_000, 1_000))
        self.assertEqual(found, {"count": 200, "p50_us": 101.0, "p99_us": 199.0})
        self.assertEqual(figures.cycles([])["p50_us"], None)

    def test_median(self):
        self.assertEqual((figures.median([3, 1, 2]), figures.median([4, 1])), (2, 2.5))


if __name__ == "__main__":
    unittest.main()
