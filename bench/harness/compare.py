"""Compares two sets of runs by ratios: leasehold against the baseline and the peers of the same run and round."""

import dataclasses

from .figures import median
from .subjects import OURS

# A median that has moved by less does not count, however narrow the spread is.
THRESHOLD = 0.10
# With fewer, a spread says nothing.
FEWEST_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Measure:
    name: str
    field: str
    text: str
    higher_is_better: bool
    baseline_only: bool = False


MEASURES = [
    Measure("cycle", "p50_us", "cycle, p50", False),
    Measure("tasks", "per_s", "64 tasks, cycles a second", True),
    Measure("processor", "us", "server's processor time for a cycle", False),
    Measure("handover", "per_s", "hand-overs a second", True),
    Measure("handover", "gap_p50_us", "gap, p50", False, baseline_only=True),
]


def values(data, store, lock, measure, waiters=None):
    """The figures of a lock, by round."""
    found = {}
    for run in data["runs"]:
        if (run["store"], run["lock"], run["measure"]) == (store, lock, measure.name) and run.get("waiters") in (None, waiters):
            if run.get(measure.field):
                found[run["round"]] = run[measure.field]
    return found


def ratios(data, store, other, measure, waiters=None):
    """Leasehold against another lock, of each round that has both."""
    ours, theirs = values(data, store, OURS, measure, waiters), values(data, store, other, measure, waiters)
    return [ours[round] / theirs[round] for round in sorted(ours) if round in theirs]


def in_order(values):
    return list(dict.fromkeys(values))


def stores(data):
    return in_order(run["store"] for run in data["runs"])


def locks(data, store):
    """Leasehold, the baseline, the peers."""
    found = in_order(run["lock"] for run in data["runs"] if run["store"] == store)
    return sorted(found, key=lambda lock: (lock != OURS, lock != "baseline"))


def waiter_counts(data):
    return sorted({run["waiters"] for run in data["runs"] if "waiters" in run})


def main_waiters(*sets):
    """The number of waiters that is compared: 16 if all have it, otherwise the greatest that all have, or None."""
    common = set.intersection(*(set(waiter_counts(data)) for data in sets))
    return 16 if 16 in common else max(common, default=None)


@dataclasses.dataclass(frozen=True)
class Change:
    store: str
    against: str
    measure: Measure
    old: list
    new: list

    def judged(self):
        return min(len(self.old), len(self.new)) >= FEWEST_ROUNDS

    def moved(self):
        """-1: worse, 1: better, beyond the spread: no round of the one reaches into the rounds of the other."""
        if not self.judged() or abs(median(self.new) / median(self.old) - 1) < THRESHOLD:
            return 0
        if min(self.new) > max(self.old):
            return 1 if self.measure.higher_is_better else -1
        if max(self.new) < min(self.old):
            return -1 if self.measure.higher_is_better else 1
        return 0

    def __str__(self):
        show = lambda numbers: f"{median(numbers):.3g} ({min(numbers):.3g} to {max(numbers):.3g})"
        return f"{self.store}: {self.measure.text}, against {self.against}: {show(self.old)} before, {show(self.new)} now"


def changes(old, new):
    """Of all ratios that both sets have."""
    waiters = main_waiters(old, new)
    found = []
    for store in stores(new):
        for measure in MEASURES:
            for other in locks(new, store):
                if other == OURS or measure.baseline_only and other != "baseline":
                    continue
                before, after = (ratios(data, store, other, measure, waiters) for data in (old, new))
                if before and after:
                    found.append(Change(store, other, measure, before, after))
    return found


def overlaps(data):
    """The stores on which two held leasehold's lock at once."""
    return in_order(run["store"] for run in data["runs"] if run["lock"] == OURS and run.get("overlaps"))


def missing(old, new):
    """What the old set has and the new one has not, as STORE/LOCK."""
    names = lambda data: in_order(f"{run['store']}/{run['lock']}" for run in data["runs"])
    return [name for name in names(old) if name not in names(new)]


def other_versions(old, new):
    both = [name for name in old.get("versions", {}) if name in new.get("versions", {})]
    return {name: (old["versions"][name], new["versions"][name]) for name in both if old["versions"][name] != new["versions"][name]}
