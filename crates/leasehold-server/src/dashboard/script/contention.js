// Hot locks: how long others waited for each, minute by minute, over the last hour.

const SERIES = 6;

const contentionPage = {
  title: "Contention",

  enter(main) {
    this.body = el("div", null, el("p", { class: "empty" }, "reading …"));
    main.append(
      el("h2", { tabindex: "-1" }, "Contention"),
      el("p", { class: "lead" }, "Seconds that were spent waiting for each lock, in each minute of the last hour. Two who wait for a whole minute are two minutes."),
      this.body);
    this.reading = repeat(() => this.read(), 5000);
  },

  leave() { this.reading.stop(); },
  onReset() { this.reading.soon(); },

  async read() {
    try {
      this.show(await get("v1/contention", { limit: 50 }));
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
      this.body.replaceChildren(el("p", { class: "notice bad", role: "alert" }, problem.message));
    }
  },

  show(answer) {
    const locks = answer.locks.filter((lock) => lock.waited_ms > 0);
    rebuild(this.body, answer, () => {
      if (locks.length === 0) return el("section", { class: "card" }, el("p", { class: "empty" }, "Nobody has waited for a lock in the last hour."));
      return [
        el("section", { class: "card", "aria-label": "Waited time by minute" }, contentionChart(answer, locks)),
        el("section", { class: "card", "aria-label": "Locks by waited time" }, el("h3", null, "The most contended first"), contentionTable(answer, locks)),
      ];
    });
  },
};

function minuteAt(answer, bucket, buckets) {
  return clock(new Date(answer.ends_at).getTime() - (buckets - bucket) * answer.bucket_ms).slice(-8, -3);
}

/** A round number at or above the value, for the top of an axis. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

/** Bars of all waited time, with the hottest locks each in a colour of its own. */
function contentionChart(answer, locks) {
  const buckets = locks[0].buckets_ms.length;
  const hot = locks.slice(0, SERIES);
  const rest = locks.slice(SERIES);
  const series = hot.map((lock, at) => ({ name: lock.name, kind: `s${at + 1}`, values: lock.buckets_ms }));
  if (rest.length > 0) {
    const values = Array.from({ length: buckets }, (_, at) => rest.reduce((sum, lock) => sum + lock.buckets_ms[at], 0));
    series.push({ name: plural(rest.length, "other"), kind: "rest", values, others: true });
  }
  const totals = Array.from({ length: buckets }, (_, at) => series.reduce((sum, one) => sum + one.values[at], 0));
  const top = roundUp(Math.max(1, ...totals.map((ms) => ms / 1000)));
  const [width, height, leftSpace, foot] = [1160, 240, 46, 22];
  const step = (width - leftSpace) / buckets;
  const y = (ms) => (height - foot) * (1 - ms / 1000 / top) + 4;
  const parts = [];
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const at = y(top * part * 1000);
    parts.push(svg("line", { class: "grid", x1: leftSpace, x2: width, y1: at, y2: at }),
      svg("text", { x: leftSpace - 8, y: at + 4, "text-anchor": "end" }, `${Number((top * part).toFixed(1))} s`));
  }
  for (let at = 0; at < buckets; at += 10) {
    parts.push(svg("text", { x: leftSpace + at * step, y: height + 2 }, minuteAt(answer, at, buckets)));
  }
  for (let at = 0; at < buckets; at += 1) {
    let below = 0;
    for (const one of series) {
      const value = one.values[at];
      if (value === 0) continue;
      const [from, to] = [y(below), y(below + value)];
      below += value;
      parts.push(svg("rect", { class: one.kind, x: leftSpace + at * step + 1, width: step - 2, y: to, height: Math.max(0.5, from - to) },
        svg("title", null, `${one.name}: ${duration(value)} at ${minuteAt(answer, at, buckets)}`)));
    }
  }
  const worst = totals.indexOf(Math.max(...totals));
  const label = `Waited time of the last hour by minute: the most, ${duration(totals[worst])}, at ${minuteAt(answer, worst, buckets)}. The table below has the locks.`;
  return [
    el("h3", null, "Waited time ", el("small", null, "per minute")),
    svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height + 8}`, role: "img", "aria-label": label }, parts),
    el("ul", { class: "legend" }, series.map((one) => el("li", null, el("i", { class: one.kind }), one.others ? one.name : lockLink(one.name)))),
  ];
}

function contentionTable(answer, locks) {
  const buckets = locks[0].buckets_ms.length;
  const most = Math.max(...locks.flatMap((lock) => lock.buckets_ms));
  const head = ["Lock", el("th", { class: "num", scope: "col" }, "Waited"), el("th", { scope: "col" }, "Worst minute"),
    el("th", { class: "heat-col", scope: "col" }, el("span", { class: "axis" }, el("span", null, "an hour ago"), el("span", null, "now")))];
  return table("Waited time of each lock in the last hour", head, locks.map((lock) => {
    const worst = lock.buckets_ms.indexOf(Math.max(...lock.buckets_ms));
    return el("tr", null,
      el("td", { class: "name" }, lockLink(lock.name)),
      el("td", { class: "num" }, duration(lock.waited_ms)),
      el("td", null, `${duration(lock.buckets_ms[worst])} at ${minuteAt(answer, worst, buckets)}`),
      el("td", { class: "heat-col" }, heatStrip(answer, lock, most)));
  }));
}

function heatStrip(answer, lock, most) {
  const buckets = lock.buckets_ms.length;
  const cells = lock.buckets_ms.map((value, at) => svg("rect", {
    class: value === 0 ? "none" : null, x: at * 10, y: 0, width: 9, height: 22,
    opacity: value === 0 ? null : (0.2 + 0.8 * Math.sqrt(value / most)).toFixed(2),
  }, svg("title", null, `${minuteAt(answer, at, buckets)}: ${duration(value)}`)));
  return svg("svg", { class: "heat", viewBox: `0 0 ${buckets * 10} 22`, preserveAspectRatio: "none", "aria-hidden": "true" }, cells);
}
