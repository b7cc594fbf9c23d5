// The page of all locks: tiles, the table, the queue of one lock, and events.

const ROW_HEIGHT = 48;
const ROWS_AROUND = 8;
const PAGE_OF_LOCKS = 5000;
const MOST_LOCKS = 100_000;

const COLUMNS = [
  { key: "name", title: "Lock", of: (lock) => lock.name },
  { key: "holder", title: "Holder", of: (lock) => lock.holders[0]?.label ?? "" },
  { key: "held", title: "Held for", of: (lock) => lock.holders[0]?.held_ms ?? -1, falls: true },
  { key: "left", title: "Time left", of: (lock) => lock.holders[0]?.time_left_ms ?? -1 },
  { key: "waiting", title: "Waiting", of: (lock) => lock.waiters.length, falls: true, number: true },
  { key: "oldest", title: "Oldest wait", of: (lock) => oldestWait(lock), falls: true },
  { key: "token", title: "Token", of: (lock) => lock.holders[0]?.token ?? -1, falls: true },
];

function oldestWait(lock) {
  return lock.waiters.reduce((most, waiter) => Math.max(most, waiter.waited_ms), -1);
}

/** The lock with the oldest wait, if anybody waits. */
function longestWaited(locks) {
  let found;
  let most = -1;
  for (const lock of locks) {
    const oldest = lock.waiters.length > 0 ? oldestWait(lock) : -1;
    if (oldest > most) [found, most] = [lock, oldest];
  }
  return found;
}

/** What the filter looks in. */
function searchText(lock) {
  const claimants = [...lock.holders, ...lock.waiters];
  return [lock.name, ...claimants.flatMap((one) => [one.label, one.host, one.reason ?? ""])].join("\n").toLowerCase();
}

/** One row of the table. Rows belong to a name, so that the focus stays where it is when the table is read again. */
class LockRow {
  constructor(name) {
    this.name = name;
    this.link = lockLink(name);
    this.tags = el("span");
    this.reason = el("small");
    this.holder = el("td");
    this.held = el("td");
    this.left = new TimeLeft();
    this.waiting = el("td", { class: "num" });
    this.oldest = el("span");
    this.token = el("td", { class: "tok" });
    this.node = el("tr", { class: "row" },
      el("td", { class: "name" }, el("span", { class: "line" }, this.link, this.tags), this.reason),
      this.holder, this.held, el("td", null, this.left.node), this.waiting, el("td", null, this.oldest), this.token);
    this.node.lock = name;
  }

  update(lock, index, selected) {
    const [first, ...others] = lock.holders;
    this.node.setAttribute("aria-rowindex", String(index + 2));
    setClass(this.node, selected ? "row selected" : "row");
    if (this.shown !== lock) {
      this.shown = lock;
      this.link.title = lock.name;
      this.tags.replaceChildren(...this.tagsOf(lock));
      setText(this.reason, first?.reason ?? "");
      this.holder.replaceChildren(...this.holderOf(first, others));
      setText(this.token, first ? String(first.token) : "–");
      setText(this.waiting, number(lock.waiters.length));
    }
    const passed = sinceRead(lock);
    setText(this.held, first ? duration(first.held_ms + passed) : "–");
    this.left.node.hidden = !first;
    if (first) this.left.update(first, passed);
    const oldest = oldestWait(lock);
    setText(this.oldest, oldest < 0 ? "–" : duration(oldest + passed));
    setClass(this.oldest, oldest + passed > 30_000 ? "tag w" : "");
  }

  tagsOf(lock) {
    const [first] = lock.holders;
    if (first?.mode === "shared") return [el("i", { class: "tag" }, "shared")];
    if (first?.mode === "permit") return [el("i", { class: "tag" }, `${lock.holders.length} of ${first.permits} permits`)];
    return [];
  }

  holderOf(first, others) {
    if (!first) return [el("i", { class: "tag g" }, "free")];
    if (first.mode === "shared" && others.length > 0) return [`${number(others.length + 1)} readers`];
    return [...person(first), others.length > 0 ? ` +${number(others.length)}` : ""].filter((part) => part !== null);
  }
}

const locksPage = {
  title: "Locks",
  locks: new Map(),
  shown: [], // after filter and sort
  rows: new Map(),
  filter: "",
  sort: { key: "name", falls: false },
  selected: null,

  enter(main) {
    this.tiles = new Tiles();
    this.input = el("input", {
      class: "filter", type: "search", placeholder: "Filter by lock, holder or host", "aria-label": "Filter by lock, holder or host",
      "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false",
      oninput: () => { this.filter = this.input.value; this.arrange(); this.scroll.scrollTop = 0; this.draw(); },
    });
    this.input.value = this.filter;
    this.count = el("span", { class: "count", role: "status" });
    this.top = el("td", { colspan: COLUMNS.length });
    this.bottom = el("td", { colspan: COLUMNS.length });
    this.topRow = el("tr", { class: "spacer", "aria-hidden": "true" }, this.top);
    this.bottomRow = el("tr", { class: "spacer", "aria-hidden": "true" }, this.bottom);
    this.body = el("tbody", null, this.topRow, this.bottomRow);
    this.heads = new Map(COLUMNS.map((column) => [column.key, this.headOf(column)]));
    this.table = el("table", { class: "locks" },
      el("caption", { class: "visually-hidden" }, "Locks that are held or waited for"),
      el("thead", null, el("tr", { "aria-rowindex": "1" }, [...this.heads.values()])), this.body);
    this.empty = el("p", { class: "empty" }, "reading …");
    this.scroll = el("div", { class: "scroll locks-scroll", role: "region", "aria-label": "Table of locks", tabindex: "0", onscroll: () => this.drawSoon() }, this.table, this.empty);
    this.queue = el("section", { class: "card", "aria-label": "The queue of a lock" });
    this.events = el("ul", { class: "events" });
    this.rows.clear();
    this.problem = el("p", { class: "notice bad", hidden: true, role: "alert" });

    main.append(
      el("h2", { class: "visually-hidden", tabindex: "-1" }, "Locks"),
      this.problem,
      this.tiles.node,
      el("div", { class: "bar" }, this.input,
        el("span", { class: "hint" }, el("kbd", null, "/"), " filter · ", el("kbd", null, "j"), " ", el("kbd", null, "k"), " move · ", el("kbd", null, "↵"), " open"),
        this.count),
      this.scroll,
      el("div", { class: "two" }, this.queue, el("section", { class: "card", "aria-label": "Events" }, el("h3", null, "Events"), this.events)));

    this.body.addEventListener("focusin", (event) => {
      const row = event.target.closest("tr");
      if (row?.lock !== undefined) this.select(row.lock, false);
    });
    this.markSort();
    this.showEvents();
    this.arrange();
    this.reading = repeat(() => this.read(), 2000);
    this.ticking = setInterval(() => { if (!document.hidden) this.draw(); }, 500);
    this.resized = () => this.drawSoon();
    addEventListener("resize", this.resized);
    this.draw();
  },

  leave() {
    this.reading.stop();
    clearInterval(this.ticking);
    removeEventListener("resize", this.resized);
  },

  async read() {
    try {
      const locks = new Map();
      let cursor = null;
      do {
        const sent = performance.now();
        const page = await get("v1/locks", { limit: PAGE_OF_LOCKS, cursor });
        for (const lock of page.locks) locks.set(lock.name, stamp(lock, sent));
        cursor = page.next;
      } while (cursor !== null && cursor !== undefined && locks.size < MOST_LOCKS);
      this.locks = locks;
      this.longestWaited = longestWaited(locks.values());
      this.known = true;
      this.problem.hidden = true;
      this.arrange();
      this.draw();
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
      this.problem.hidden = false;
      setText(this.problem, `The locks cannot be read: ${problem.message}. What is shown may be out of date.`);
    }
  },

  /** An event only says that it is time to look: the table always shows what the engine said. */
  onEvent() {
    this.reading.soon();
    this.showEvents();
  },

  onReset() { this.reading.soon(); },
  onState() { this.tiles.update(shared.summary); },

  arrange() {
    const needle = this.filter.trim().toLowerCase();
    const column = COLUMNS.find((one) => one.key === this.sort.key);
    const locks = [...this.locks.values()].filter((lock) => needle === "" || (lock.text ??= searchText(lock)).includes(needle));
    const keyed = locks.map((lock) => [column.of(lock), lock]);
    const order = this.sort.falls ? -1 : 1;
    keyed.sort(([a, one], [b, other]) => (a < b ? -order : a > b ? order : one.name < other.name ? -1 : 1));
    this.shown = keyed.map(([, lock]) => lock);
    const all = this.locks.size;
    setText(this.count, this.shown.length === all ? plural(all, "lock") : `${number(this.shown.length)} of ${plural(all, "lock")}`);
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.empty.hidden = this.shown.length > 0;
    if (this.known) setText(this.empty, all === 0 ? "No lock is held or waited for." : "No lock matches the filter.");
  },

  drawSoon() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.draw(); });
  },

  /** Draws the rows that can be seen, and room for the others. */
  draw() {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW_HEIGHT) - ROWS_AROUND);
    const count = Math.ceil(this.scroll.clientHeight / ROW_HEIGHT) + 2 * ROWS_AROUND;
    const end = Math.min(this.shown.length, first + count);
    this.top.style.height = `${Math.min(first, this.shown.length) * ROW_HEIGHT}px`;
    this.bottom.style.height = `${Math.max(0, this.shown.length - end) * ROW_HEIGHT}px`;
    const wanted = this.shown.slice(first, end);
    const names = new Set(wanted.map((lock) => lock.name));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) {
        row.node.remove();
        this.rows.delete(name);
      }
    }
    let before = this.topRow;
    wanted.forEach((lock, offset) => {
      let row = this.rows.get(lock.name);
      if (row === undefined) {
        row = new LockRow(lock.name);
        this.rows.set(lock.name, row);
      }
      row.update(lock, first + offset, lock.name === this.selected);
      if (before.nextSibling !== row.node) before.after(row.node);
      before = row.node;
    });
    this.showQueue();
  },

  headOf(column) {
    const button = el("button", {
      type: "button",
      onclick: () => {
        this.sort = { key: column.key, falls: this.sort.key === column.key ? !this.sort.falls : Boolean(column.falls) };
        this.markSort();
        this.arrange();
        this.draw();
      },
    }, column.title);
    return el("th", { scope: "col", class: `c-${column.key} ${column.number ? "num" : ""}` }, button);
  },

  markSort() {
    for (const [key, head] of this.heads) {
      if (key === this.sort.key) head.setAttribute("aria-sort", this.sort.falls ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  },

  select(name, focus) {
    this.selected = name;
    this.draw();
    if (focus) this.rows.get(name)?.link.focus({ preventScroll: true });
  },

  move(step) {
    if (this.shown.length === 0) return;
    const at = this.shown.findIndex((lock) => lock.name === this.selected);
    const to = at < 0 ? 0 : Math.min(this.shown.length - 1, Math.max(0, at + step));
    const head = this.table.tHead.offsetHeight;
    const top = to * ROW_HEIGHT;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    const most = top + ROW_HEIGHT + head - this.scroll.clientHeight;
    if (most > this.scroll.scrollTop) this.scroll.scrollTop = most;
    this.select(this.shown[to].name, true);
  },

  onKey(key) {
    if (key === "j") this.move(1);
    else if (key === "k") this.move(-1);
    else if (key === "/") { this.input.focus(); this.input.select(); }
    else if (key === "Escape" && this.filter !== "") {
      this.input.value = this.filter = "";
      this.arrange();
      this.draw();
    } else return false;
    return true;
  },

  /** The queue of the selected lock, or of the one with the oldest wait. It does not pass to another lock under the user's hand. */
  showQueue() {
    const inUse = this.queue.matches(":hover, :focus-within") ? this.locks.get(this.queueOf) : undefined;
    const lock = this.locks.get(this.selected) ?? inUse ?? this.longestWaited;
    this.queueOf = lock?.name;
    if (lock === undefined) {
      rebuild(this.queue, null, () => [el("h3", null, "Queue"), el("p", { class: "more" }, "Nobody waits. Select a lock to see its queue.")]);
      return;
    }
    rebuild(this.queue, [lock.name, queueKey(lock), holdersKey(lock), shared.me?.may], () => {
      this.queueTicks = [];
      return [
        el("h3", null, lockLink(lock.name), " ", el("small", null, lock.waiters.length > 0 ? "the queue, in order" : "nobody waits")),
        queueList(lock, 8, this.queueTicks),
        lockActions(() => this.locks.get(lock.name) ?? lock),
      ];
    });
    const passed = sinceRead(lock);
    for (const tick of this.queueTicks) tick(lock, passed);
  },

  showEvents() {
    const items = shared.events.slice(0, 10).map((event) => eventItem(event, true));
    this.events.replaceChildren(...(items.length > 0 ? items : [el("li", { class: "more" }, "Nothing has happened yet.")]));
  },
};

/** What of a queue and of holders is shown besides their times. */
function queueKey(lock) {
  return lock.waiters.map((one) => [one.label, one.host, one.pid, one.mode, one.reason]);
}

function holdersKey(lock) {
  return lock.holders.map((one) => [one.token, one.label, one.host, one.pid, one.mode, one.reason]);
}

/** The first `most` waiters; `ticks` receives what counts their times on. */
function queueList(lock, most, ticks) {
  const items = lock.waiters.slice(0, most).map((waiter, at) => {
    const time = el("span", { class: "time" });
    ticks.push((now, passed) => setText(time, duration(now.waiters[at].waited_ms + passed)));
    return el("li", null, el("span", null, person(waiter), " ", modeTag(waiter), waiter.reason ? [" ", el("i", { class: "tag g" }, waiter.reason)] : null), time);
  });
  const more = lock.waiters.length - items.length;
  return el("div", null, el("ol", { class: "queue" }, items), more > 0 ? el("p", { class: "more" }, `and ${number(more)} more`) : null);
}

class Tiles {
  constructor() {
    this.values = ["Held", "Waiting", "Oldest wait", "Lost in the last hour"].map((title) => {
      const value = el("div", { class: "v" }, "–");
      const more = el("div");
      return { value, more, node: el("div", { class: "tile" }, el("div", { class: "k" }, title), value, more) };
    });
    this.node = el("section", { class: "tiles", "aria-label": "Summary" }, this.values.map((tile) => tile.node));
    this.update(shared.summary);
  }

  update(summary) {
    if (summary === null) return;
    const [held, waiting, oldest, lost] = this.values;
    setText(held.value, number(summary.held));
    setText(waiting.value, number(summary.waiting));
    setText(oldest.value, summary.waiting > 0 && summary.oldest_wait_ms !== null ? duration(summary.oldest_wait_ms) : "–");
    // Not told to those who see only some of the locks.
    if (summary.lost_last_hour === null) return;
    const { expired, broken } = summary.lost_last_hour;
    lost.value.replaceChildren(number(expired + broken), " ",
      expired > 0 ? el("span", { class: "tag w" }, broken > 0 ? `${expired} expired` : "expired") : "", " ",
      broken > 0 ? el("span", { class: "tag b" }, expired > 0 ? `${broken} broken` : "broken") : "");
    if (summary.series) {
      held.more.replaceChildren(sparkline(summary.series.held, "Held in the last hour", ""));
      waiting.more.replaceChildren(sparkline(summary.series.waiting, "Waiting in the last hour", "warn"));
    }
  }
}

function sparkline(values, label, kind) {
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => `${((at / Math.max(1, values.length - 1)) * 120).toFixed(1)},${(24 - (value / most) * 22).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 120 26", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: at most ${number(Math.max(0, ...values))}` },
    svg("polyline", { class: `spark ${kind}`, points: points.join(" ") }));
}
