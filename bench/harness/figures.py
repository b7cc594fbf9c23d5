"""Figures from what the waiters tell."""

# The percentiles that are kept of a distribution.
STEPS = [*range(0, 100, 2), 99, 100]


def percentile(ordered, per_cent):
    """As `leasehold bench` has it; None of nothing."""
    if not ordered:
        return None
    return ordered[min(len(ordered) * per_cent // 100, len(ordered) - 1)]


def micros(nanos):
    return None if nanos is None else float(f"{nanos / 1000:.4g}")


def cycles(times):
    times = sorted(times)
    return {"count": len(times), "p50_us": micros(percentile(times, 50)), "p99_us": micros(percentile(times, 99))}


def hand_overs(holds_of_each, start, end):
    """From the holds of each waiter, as pairs of when it began and ended; those that began in time count."""
    in_time = [[hold for hold in holds if hold[0] < end] for holds in holds_of_each]
    holds = sorted(tuple(hold) for holds in holds_of_each for hold in holds)
    pairs = list(zip(holds, holds[1:]))
    gaps = sorted(max(0, later[0] - earlier[1]) for earlier, later in pairs if later[0] < end)
    return {
        "per_s": round(sum(map(len, in_time)) / ((end - start) / 1e9), 1),
        "gap_p50_us": micros(percentile(gaps, 50)),
        "gap_p99_us": micros(percentile(gaps, 99)),
        "gap_us": [micros(percentile(gaps, step)) for step in STEPS] if gaps else [],
        "most": max(map(len, in_time), default=0),
        "fewest": min(map(len, in_time), default=0),
        # Any means that two held the lock at once.
        "overlaps": sum(later[0] < earlier[1] for earlier, later in pairs),
    }


def median(numbers):
    numbers = sorted(numbers)
    middle = len(numbers) // 2
    return numbers[middle] if len(numbers) % 2 else (numbers[middle - 1] + numbers[middle]) / 2
