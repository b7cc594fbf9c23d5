"""docs/benchmarks.md, from the kept data."""

import re

from . import compare
from .figures import median
from .subjects import OURS, PEER_LIST

TITLES = {
    "file": "SQLite, flock",
    "redis": "Redis",
    "redlock": "Redlock, 5 servers",
    "postgres": "PostgreSQL",
    "mysql": "MariaDB",
    "etcd": "etcd",
    "zookeeper": "ZooKeeper",
}
PACKAGES = {"redis": "redis-py"}

INTRODUCTION = """\
# Benchmarks

<!-- Made by bench/report from {path}. Change the text in bench/harness/page.py. -->

leasehold beside other locks, under the same load, on the same machine, in turns. Figures are medians of {rounds} rounds, with the lowest and the
highest in parentheses; no run is left out. `bench/run` repeats all of it from a clone: [how](../bench/README.md).

Compare the locks of a table with each other, not microseconds with those of another machine. {circumstances}
"""

METHOD = """\
## Method

- **Cycle**: one process acquires and releases a lock that nobody else wants, {seconds} in each round.
- **Hand-overs**: processes wait for one lock, each with a connection of its own. A holder keeps it for 0 to 1 ms, at random, and then competes again only
  after another has held it. So 16 processes hand over at most some 2,000 times a second, and a lock that lets the same process in again and again gains nothing.
- **Gap**: from the end of one hold to the start of the next, by the machine's monotonic clock, which all processes share.
- **Most/fewest**: the turns of the process that had the most, and of the one that had the fewest.
- **Baseline**: the fastest that the store itself can do without leasehold, by the same client library and in turns with leasehold
  ([`leasehold bench`](cli.md#bench)). What it is for each store is told at its table.
- **In rounds**: in each round every lock is measured once on each store, another one first each time, on servers that were just started (those of
  Redlock run on from round to round, since leasehold grants nothing on new ones at first). All servers are on the loopback, with their built-in
  settings, except that Redis writes no snapshots and that more connections are allowed. etcd and ZooKeeper have one member. PostgreSQL, MariaDB, etcd and
  ZooKeeper write each change to a file with fsync.
- **Peers** are used as their documentation says, with their default settings. Where such a call gives up after some tries, it is made again.
- The steal, the share of the processor that the host gave to other machines, is kept with each run. leasehold's cycles, and those of the baseline, are
  measured by `leasehold bench`, which repeats a measurement with more than 10 % steal; hand-overs and peers are never repeated.

## What is unfair to whom

- **To locks that poll** (rslock, redlock, redis-py, aioredlock): their gaps are the pauses that they make by default. A shorter pause makes more hand-overs
  and more requests. In a measurement of {seconds} they make few hand-overs, so their figures vary most.
- **To peers in Python and JavaScript**: a cycle contains the time of their interpreter. The same lock in another language would be faster, most of all
  where the store answers quickly.
- **To etcd's lock**: it is called through the server's JSON gateway, one more hop in the same process.
- **To leasehold**: its locks have a time limit, a fencing token and a place in a queue that survive the loss of a connection. Advisory locks, `GET_LOCK`
  and `flock(2)` have none of these, and write nothing to a disk. zookeeper-client does not wait for its release.
- **To rslock, redlock and aioredlock on one server**: they are made for several. On one, they take the same steps with a quorum of one.
- **To locks with many round trips**: not at all, and that flatters them. On the loopback a round trip takes microseconds; on a network it decides.
- **To all**: servers and processes share the {cores} cores. A lock that needs less processor time leaves more to its server.
"""


def number(value):
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(values, show=number):
    values = list(values)
    if not values:
        return "–"
    if len(values) == 1:
        return show(values[0])
    return f"{show(median(values))} ({show(min(values))} to {show(max(values))})"


def ratio(value):
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def times(values):
    return spread(values, ratio)


def time(micros):
    if micros is None:
        return "–"
    return f"{number(micros)} µs" if micros < 1000 else f"{number(micros / 1000)} ms"


def handover_fields(data, store, lock, waiters, field):
    return [run[field] for run in data["runs"] if run["measure"] == "handover" and run["waiters"] == waiters
            and (run["store"], run["lock"]) == (store, lock) and run.get(field) is not None]


def cycle_fields(data, store, lock, field):
    return [run[field] for run in data["runs"] if run["measure"] == "cycle" and (run["store"], run["lock"]) == (store, lock) and run.get(field)]


def table(heads, rows):
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def best_peer(data, store, waiters):
    """The peer with the most hand-overs."""
    peers = [lock for lock in compare.locks(data, store) if lock not in (OURS, "baseline")]
    known = [(median(found), peer) for peer in peers if (found := handover_fields(data, store, peer, waiters, "per_s"))]
    return max(known)[1] if known else None


def summary(data, waiters):
    cycle, handovers = compare.MEASURES[0], compare.MEASURES[3]
    rows = []
    for store in compare.stores(data):
        if OURS not in compare.locks(data, store):
            continue
        best = best_peer(data, store, waiters)
        against = lambda other: times(compare.ratios(data, store, other, handovers, waiters)) if other else "–"
        rows.append([TITLES[store], number_of(handover_fields(data, store, OURS, waiters, "per_s")), against("baseline"),
                     f"{best}: {against(best)}" if best else "–", times(compare.ratios(data, store, "baseline", cycle))])
    heads = ["", f"hand-overs a second, {waiters} processes", "against the baseline", "against the best peer", "cycle against the baseline"]
    return table(heads, rows) + "\nMore hand-overs are better: a ratio above 1 is in leasehold's favour. A shorter cycle is better: a ratio below 1 is.\n"


def number_of(values):
    return number(median(values)) if values else "–"


def store_section(data, store, waiters):
    waits = {peer.name: peer.waits for peer in PEER_LIST}
    rows = []
    for lock in compare.locks(data, store):
        field = lambda name: handover_fields(data, store, lock, waiters, name)
        turns = [f"{most}/{fewest}" for most, fewest in zip(field("most"), field("fewest"))]
        rows.append([f"**{lock}**" if lock == OURS else lock, spread(cycle_fields(data, store, lock, "p50_us"), time),
                     spread(cycle_fields(data, store, lock, "p99_us"), time), spread(field("per_s")),
                     spread(field("gap_p50_us"), time), spread(field("gap_p99_us"), time), ", ".join(turns) or "–"])
    text = f"### {TITLES[store]}\n\n"
    text += table(["", "cycle p50", "cycle p99", "hand-overs a second", "gap p50", "gap p99", "most/fewest, by round"], rows)
    is_ = data.get("baselines", {}).get(store, {})
    notes = []
    if is_:
        notes.append(f"Baseline of a cycle: {is_['cycle']}; of a hand-over: {is_['handover']}.")
    peers = [lock for lock in compare.locks(data, store) if lock in waits]
    notes.append("How they wait: " + "; ".join(f"{peer}: {waits[peer]}" for peer in peers) + ".")
    broken = [lock for lock in compare.locks(data, store) if any(handover_fields(data, store, lock, waiters, "overlaps"))]
    if broken:
        notes.append(f"Two held the lock at once: {', '.join(broken)}.")
    return text + "\n" + " ".join(notes) + "\n"


def engine_table(data):
    """What only leasehold and the baseline are measured by."""
    rows = []
    for store in compare.stores(data):
        cells = [TITLES[store]]
        for measure, show in ((compare.MEASURES[1], number), (compare.MEASURES[2], time)):
            for lock in (OURS, "baseline"):
                cells.append(spread(compare.values(data, store, lock, measure).values(), show))
            cells.append(times(compare.ratios(data, store, "baseline", measure)))
        if any(cell != "–" for cell in cells[1:]):
            rows.append(cells)
    heads = ["", "64 tasks: cycles a second", "baseline", "ratio", "server's processor time for a cycle", "baseline", "ratio"]
    return ("## Many tasks, and the server's time\n\n64 tasks of one process, each on its own lock; and, where the servers tell it, the processor time that they use for a "
            "cycle.\n\n" + table(heads, rows))


def version(text):
    """The number in what a program prints."""
    found = re.search(r"\d+\.\d[\w.+-]*", text)
    return found[0] if found else text


def versions(data):
    machine = data["machine"]
    rows = [["machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB, {machine['os']}, {machine['kernel']}"]]
    rows += [[PACKAGES.get(name, name), version(text)] for name, text in data["versions"].items()]
    if data.get("commit"):
        rows.append(["commit", f"`{data['commit']}`"])
    return "## Machine and versions\n\n" + table(["", ""], rows)


def circumstances(data):
    steal = [run["steal"] for run in data["runs"] if run["steal"] is not None]
    load = [run["load"] for run in data["runs"]]
    text = f"Taken on {data['date'][:10]} on a machine with {data['machine']['cores']} cores. {data['note']}".strip()
    text += f" The load average was {data['load_at_start']} at the start and {min(load)} to {max(load)} meanwhile, which includes the load of the benchmark itself"
    if steal:
        text += f"; the steal was {median(steal):.1%} in the median run and {max(steal):.1%} at most"
    return text + "."


def page(data, path):
    waiters = compare.main_waiters(data)
    seconds = data["options"]["seconds"]
    seconds = "one second" if seconds == 1 else f"{seconds} seconds"
    parts = [
        INTRODUCTION.format(path=path, rounds=data["options"]["rounds"], circumstances=circumstances(data)),
        summary(data, waiters),
        f"## The gap between two holders\n\n{waiters} processes; the share of hand-overs whose gap was at most so long. Left is better.\n\n"
        "![Cumulative curves of the gap between two holders, one picture for each store](benchmarks-gaps.svg)\n",
        "## Hand-overs over the number of waiters\n\nThe dots are medians, the bars reach from the lowest to the highest round.\n\n"
        "![Hand-overs a second over the number of waiting processes, one picture for each store](benchmarks-waiters.svg)\n",
        "## The cost of an uncontended lock\n\nThe median of a cycle against that of the baseline of the same round; the bars reach from the lowest to the "
        "highest round. leasehold takes turns with the baseline every few cycles, peers are measured seconds or minutes later, so noise widens their bars more.\n\n"
        "![The time of a cycle against the baseline, for each lock](benchmarks-cycle.svg)\n",
        f"## All figures\n\nHand-overs and gaps are those of {waiters} processes.\n",
        *(store_section(data, store, waiters) for store in compare.stores(data)),
        engine_table(data),
        METHOD.format(seconds=seconds, cores=data["machine"]["cores"]),
    ]
    left_out = {**data["missing"], **data["failed"]}
    if left_out:
        parts.append("## Missing or failed\n\nFor these, there are fewer rounds or none.\n\n" + "".join(f"- {what}: {why.splitlines()[0] if why else 'unknown'}\n" for what, why in left_out.items()))
    parts.append(versions(data))
    return "\n".join(parts)
