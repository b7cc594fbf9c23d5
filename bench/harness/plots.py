"""The pictures of the report: SVG that follows the reader's light or dark colours."""

import html
import math

from . import compare
from .figures import STEPS, median
from .subjects import OURS, PEER_LIST

WIDTH = 920
STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #424a53 }
  .title { font-size: 14px; font-weight: 600; fill: #1f2328 }
  .paper { fill: #ffffff }
  .grid { stroke: #e3e7eb; stroke-width: 1 }
  .axis { stroke: #9aa4ae; stroke-width: 1 }
  .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round }
  .ours { stroke-width: 3 }
  .baseline { stroke-dasharray: 5 4 }
"""
# Of leasehold, the baseline and the peers of a store, on light and on dark paper.
COLOURS = [("#0b5fd0", "#6cb2ff"), ("#6e7781", "#9aa4ae"), ("#c2410c", "#ff9b57"), ("#0f8a5f", "#4fd1a0"),
           ("#a3328b", "#f08cd4"), ("#a37a00", "#e3c341"), ("#0e8ba0", "#5fd5e6")]
DARK = "text { fill: #b6bfc9 } .title { fill: #f0f3f6 } .paper { fill: #0d1117 } .grid { stroke: #252c34 } .axis { stroke: #5b6570 }"


def colour(store, lock):
    """The number of a lock's colour. Those on Redis keep theirs on Redlock."""
    if lock in (OURS, "baseline"):
        return 0 if lock == OURS else 1
    peers = [peer.name for peer in PEER_LIST if ("redis" if store == "redlock" else store) in peer.stores]
    return 2 + peers.index(lock) if lock in peers else 1


class Picture:
    def __init__(self, title):
        self.title, self.parts = title, []

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, text, anchor="start", css=""):
        self.add(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" class="{css}">{html.escape(text)}</text>')

    def line(self, x1, y1, x2, y2, css):
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>')

    def curve(self, points, number, css=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add(f'<polyline points="{path}" class="line s{number} {css}"/>')

    def dot(self, x, y, number, radius=3.5):
        self.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="f{number}"/>')

    def svg(self, height):
        colours = lambda which: " ".join(f".s{n} {{ stroke: {pair[which]} }} .f{n} {{ fill: {pair[which]} }}" for n, pair in enumerate(COLOURS))
        style = f"{STYLE}  {colours(0)}\n  @media (prefers-color-scheme: dark) {{ {DARK} {colours(1)} }}\n"
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img">\n'
                f"<title>{html.escape(self.title)}</title>\n<style>{style}</style>\n"
                f'<rect width="{WIDTH}" height="{height:.0f}" class="paper"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def css(lock):
    return {OURS: "ours", "baseline": "baseline"}.get(lock, "")


def legend(locks):
    """The rows of a legend: (x, lock) of each."""
    rows, x = [[]], 0
    for lock in locks:
        width = 42 + 6.4 * len(lock)
        if rows[-1] and x + width > 420:
            rows.append([])
            x = 0
        rows[-1].append((x, lock))
        x += width
    return rows


def panels(picture, data, titles, draw):
    """A panel for each store, two beside each other; `draw(store, locks, x, y, width, height)` fills it."""
    names = compare.stores(data)
    y = 12
    for pair in (names[i:i + 2] for i in range(0, len(names), 2)):
        legends = {store: legend(compare.locks(data, store)) for store in pair}
        rows = max(map(len, legends.values()))
        for column, store in enumerate(pair):
            x = 50 + column * 460
            picture.text(x, y + 14, titles[store], css="title")
            for row, items in enumerate(legends[store]):
                for offset, lock in items:
                    line_y = y + 30 + 17 * row
                    picture.curve([(x + offset, line_y), (x + offset + 20, line_y)], colour(store, lock), css(lock))
                    picture.text(x + offset + 26, line_y + 4, lock)
            draw(store, compare.locks(data, store), x, y + 34 + 17 * rows, 390, 190)
        y += 34 + 17 * rows + 190 + 56
    return y - 4


def of_rounds(data, store, lock, waiters):
    runs = [run for run in data["runs"] if run["measure"] == "handover"]
    return [run for run in runs if (run["store"], run["lock"], run["waiters"]) == (store, lock, waiters)]


def gaps(data, titles, waiters):
    """How long the lock lies idle between two holders, as cumulative curves."""
    picture = Picture("From the end of one hold to the start of the next, cumulative")
    decades = range(0, 7)  # of microseconds: from 1 µs to 1 s
    names = {0: "1 µs", 1: "10 µs", 2: "100 µs", 3: "1 ms", 4: "10 ms", 5: "100 ms", 6: "1 s"}

    def draw(store, locks, x, y, width, height):
        at = lambda micros: x + width * min(1, max(0, (math.log10(max(micros, 1)) - decades[0]) / (decades[-1] - decades[0])))
        for decade in decades:
            picture.line(at(10**decade), y, at(10**decade), y + height, "grid")
            picture.text(at(10**decade), y + height + 16, names[decade], "middle")
        for share in (0, 25, 50, 75, 100):
            line_y = y + height * (1 - share / 100)
            picture.line(x, line_y, x + width, line_y, "axis" if share == 0 else "grid")
            picture.text(x - 6, line_y + 4, f"{share} %", "end")
        for lock in reversed(locks):
            curves = [run["gap_us"] for run in of_rounds(data, store, lock, waiters) if run["gap_us"]]
            if curves:
                # Above the hundredth at the top there are single events.
                points = [(at(median(of_step)), y + height * (1 - step / 100)) for step, of_step in zip(STEPS, zip(*curves)) if step < 100]
                picture.curve(points, colour(store, lock), css(lock))

    height = panels(picture, data, titles, draw)
    return picture.svg(height)


def nice_ceiling(number):
    """The next number whose quarters are round."""
    power = 10 ** math.floor(math.log10(max(number, 1)))
    return next(step * power for step in (1, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= number)


def throughput(data, titles):
    """Hand-overs a second over the number of waiters."""
    picture = Picture("Hand-overs a second over the number of waiting processes")
    counts = compare.waiter_counts(data)

    def draw(store, locks, x, y, width, height):
        per_s = {(lock, count): [run["per_s"] for run in of_rounds(data, store, lock, count)] for lock in locks for count in counts}
        top = nice_ceiling(max((max(found) for found in per_s.values() if found), default=1))
        across = lambda index: x + 24 + (width - 48) * (index / max(1, len(counts) - 1))
        up = lambda number: y + height * (1 - number / top)
        for quarter in range(5):
            picture.line(x, up(top * quarter / 4), x + width, up(top * quarter / 4), "grid" if quarter else "axis")
            picture.text(x - 6, up(top * quarter / 4) + 4, f"{top * quarter / 4:,.0f}", "end")
        for index, count in enumerate(counts):
            picture.text(across(index), y + height + 16, str(count), "middle")
        picture.text(x + width / 2, y + height + 33, "processes", "middle")
        for lock in reversed(locks):
            known = [(index, per_s[lock, count]) for index, count in enumerate(counts) if per_s[lock, count]]
            number = colour(store, lock)
            for index, found in known:
                picture.line(across(index), up(min(found)), across(index), up(max(found)), f"line s{number}")
            picture.curve([(across(index), up(median(found))) for index, found in known], number, css(lock))
            for index, found in known:
                picture.dot(across(index), up(median(found)), number)

    height = panels(picture, data, titles, draw)
    return picture.svg(height)


def cycle(data, titles):
    """A cycle of each lock against the baseline of its store."""
    picture = Picture("Acquire and release, uncontended, against the baseline of the store")
    measure = compare.MEASURES[0]
    rows = []
    for store in compare.stores(data):
        raw = compare.values(data, store, "baseline", measure)
        for lock in compare.locks(data, store):
            own = compare.values(data, store, lock, measure)
            found = [own[round] / raw[round] for round in own if round in raw]
            if lock != "baseline" and found:
                rows.append((store, lock, found))
    if not rows:
        return picture.svg(20)
    lowest, highest = min(min(row[2]) for row in rows), max(max(row[2]) for row in rows)
    ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)]
    first = max([tick for tick in ticks if tick <= lowest], default=ticks[0])
    last = min([tick for tick in ticks if tick >= max(highest, 1)], default=ticks[-1])
    ticks = [tick for tick in ticks if first <= tick <= last]
    left, right = 270, 830
    at = lambda ratio: left + (right - left) * math.log(ratio / first) / math.log(last / first)
    places, y, previous = [], 28, None
    for store, lock, found in rows:
        y += 12 if previous not in (None, store) else 0
        places.append((y, store, lock, found, store != previous))
        y += 21
        previous = store
    for tick in ticks:
        picture.line(at(tick), 16, at(tick), y - 6, "axis" if tick == 1 else "grid")
        picture.text(at(tick), y + 10, f"{tick:g}", "middle")
    picture.text(at(1), y + 28, "times the baseline, on a logarithmic scale; less is faster", "middle")
    for row_y, store, lock, found, is_first in places:
        number = colour(store, lock)
        if is_first:
            picture.text(16, row_y + 4, titles[store], css="title")
        picture.text(left - 12, row_y + 4, lock, "end")
        picture.line(at(min(found)), row_y, at(max(found)), row_y, f"line s{number}")
        picture.dot(at(median(found)), row_y, number, 6 if lock == OURS else 4.5)
        picture.text(right + 14, row_y + 4, f"{median(found):.2f}" if median(found) < 10 else f"{median(found):.1f}")
    return picture.svg(y + 40)
