// The last holds that have ended, with filters. The filters are in the link.

function holdsTable(holds, withLock) {
  const columns = [withLock ? "Lock" : null, "Who", "Acquired", "Held for", "Waited", "How it ended", "Token", "Reason"].filter((column) => column !== null);
  return table("Holds that have ended, the newest first", columns, holds.map((hold) => el("tr", null,
    withLock ? el("td", { class: "name" }, lockLink(hold.lock)) : null,
    el("td", null, person(hold), modeTag(hold)),
    el("td", null, hold.acquired_at ? timeElement(hold.acquired_at) : "–"),
    el("td", null, duration(hold.held_ms)),
    el("td", null, duration(hold.waited_ms)),
    el("td", null, endTag(hold.end), hold.by ? ` by ${hold.by}` : ""),
    el("td", { class: "tok" }, hold.token === null ? "–" : String(hold.token)),
    el("td", null, hold.reason ?? "–"))));
}

const historyPage = {
  title: "History",

  enter(main, _, query) {
    this.filters = { lock: query.get("lock") ?? "", holder: query.get("holder") ?? "", end: query.get("end") ?? "" };
    this.older = []; // further pages that were asked for
    const field = (key, label, placeholder) => {
      const input = el("input", { type: "search", placeholder, autocomplete: "off", spellcheck: "false", oninput: () => this.changed(key, input.value.trim()) });
      input.value = this.filters[key];
      return el("label", null, label, input);
    };
    const end = el("select", { onchange: () => this.changed("end", end.value) },
      el("option", { value: "" }, "any"), Object.keys(ENDS).map((one) => el("option", { value: one }, ENDS[one][0])));
    end.value = this.filters.end;
    this.body = el("div", null, el("p", { class: "empty" }, "reading …"));
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.readOlder() }, "Older …");
    this.kept = el("p", { class: "lead" });
    const lock = field("lock", "Lock", "its whole name");
    this.first = $("input", lock);
    main.append(
      el("h2", { tabindex: "-1" }, "History"), this.kept,
      el("div", { class: "bar" }, lock, field("holder", "Holder", "part of a label or host"), el("label", null, "How it ended", end)),
      this.body, el("div", { class: "acts" }, this.more));
    this.reading = repeat(() => this.read(), 10_000);
  },

  leave() { this.reading.stop(); },
  onEvent(event) { if (event.event === "ended" || event.event === "broken") this.reading.soon(); },
  onReset() { this.reading.soon(); },

  onKey(key) {
    if (key !== "/") return false;
    this.first.focus();
    return true;
  },

  changed(key, value) {
    this.filters[key] = value;
    this.older = [];
    const query = new URLSearchParams(Object.entries(this.filters).filter(([, one]) => one !== ""));
    history.replaceState(null, "", query.size ? `#/history?${query}` : "#/history");
    this.reading.soon();
  },

  async read() {
    const asked = JSON.stringify(this.filters);
    try {
      const answer = await get("v1/history", { ...this.filters, limit: 100 });
      if (asked !== JSON.stringify(this.filters)) return;
      this.newest = answer;
      this.show();
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
      rebuild(this.body, problem.message, () => el("p", { class: "notice bad", role: "alert" }, problem.message));
    }
  },

  async readOlder() {
    const last = this.older.at(-1) ?? this.newest;
    try {
      this.older.push(await get("v1/history", { ...this.filters, limit: 100, before: last.next }));
      this.show();
    } catch (problem) {
      announce(problem.message);
    }
  },

  show() {
    const pages = [this.newest, ...this.older];
    const known = new Set();
    const holds = pages.flatMap((page) => page.holds).filter((hold) => {
      const key = `${hold.lock}\n${hold.token}\n${hold.ended_at}`;
      return !known.has(key) && known.add(key);
    });
    setText(this.kept, this.newest.kept === "file" ? "Holds that have ended, the newest first, from the server's history file."
      : "Holds that have ended, the newest first. This server keeps the last 10,000, and forgets them when it ends.");
    this.more.hidden = pages.at(-1).next === null || pages.at(-1).next === undefined;
    rebuild(this.body, holds, () => (holds.length > 0 ? holdsTable(holds, true)
      : el("div", { class: "scroll" }, el("p", { class: "empty" }, "No hold that has ended matches."))));
  },
};
