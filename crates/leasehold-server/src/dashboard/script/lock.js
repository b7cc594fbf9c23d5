// The page of one lock, and what can be done with it.

/** Why this user may not do something, or null. */
function whyNot(scope) {
  const { me } = shared;
  if (me === null || me.may[scope]) return null;
  if (me.read_only) return "This server is read-only.";
  return `Your access token${me.name ? ` (${me.name})` : ""} does not have the scope “${scope}”.`;
}

/** The buttons that ask for a lock and break it. `current` gives the lock as it was read last. */
function lockActions(current) {
  const lock = current();
  const noAsk = whyNot("hold");
  const noBreak = whyNot("break");
  const free = lock.holders.length === 0;
  return el("div", { class: "acts" },
    el("button", { type: "button", "data-act": "ask", disabled: noAsk !== null || free, title: noAsk, onclick: () => askFor(current()) }, "Ask the holder …"),
    el("button", { type: "button", class: "danger", "data-act": "break", disabled: noBreak !== null || free, title: noBreak, onclick: () => breakLock(current()) }, "Break …"),
    noBreak === null ? null : el("span", { class: "why" }, noBreak));
}

/** Shows a dialog. `submit` sends; its problem is shown in the dialog, which stays open. Where `ready` is given, it tells whether the button can be used. */
function openDialog(dialog, lock, submit, ready = () => true) {
  const form = $("form", dialog);
  const button = $("button[type=submit]", form);
  const problem = $(".problem", form);
  form.reset();
  $("[data-lock]", dialog).textContent = lock.name;
  problem.textContent = "";
  const check = () => { button.disabled = !ready(); };
  form.oninput = check;
  $("[data-cancel]", form).onclick = () => dialog.close();
  form.onsubmit = async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    button.disabled = true;
    problem.textContent = "";
    try {
      announce(await submit());
      dialog.close();
      tell("reset");
    } catch (error) {
      problem.textContent = error.message;
      if (error.kind === "unauthorized") signInAgain();
    } finally {
      check();
    }
  };
  check();
  dialog.showModal();
}

function askFor(lock) {
  const reason = $("#ask-reason");
  openDialog($("#ask"), lock, async () => {
    const answer = await post(lockPath(lock.name, "ask"), { reason: reason.value.trim() });
    return `Asked ${answer.asked.map(who).join(", ")} for ${lock.name}.`;
  }, () => reason.value.trim() !== "");
}

function breakLock(lock) {
  const confirm = $("#break-confirm");
  const reason = $("#break-reason");
  $("#break [data-holders]").textContent = lock.holders.map(who).join(", ") || "its holder";
  openDialog($("#break"), lock, async () => {
    const body = { confirm: confirm.value };
    if (reason.value.trim() !== "") body.reason = reason.value.trim();
    const answer = await post(lockPath(lock.name, "force-release"), body);
    return answer.released ? `${lock.name} was broken.` : `${lock.name} was not held any more.`;
  }, () => confirm.value === lock.name);
}

function askedBy(by) {
  if (by === null || by === undefined) return "";
  return ` by ${typeof by === "string" ? by : who(by)}`;
}

const lockPage = {
  title: "Lock",

  enter(main, [name]) {
    this.name = name;
    this.lock = null;
    this.holderTicks = [];
    this.queueTicks = [];
    this.title = name;
    this.state = el("span");
    this.actions = el("div");
    this.holders = el("section", { class: "card", "aria-label": "Holders" });
    this.queue = el("section", { class: "card", "aria-label": "Queue" });
    this.events = el("section", { class: "card", "aria-label": "Events" });
    this.history = el("section", { class: "card", "aria-label": "Last holds" });
    this.notice = el("p", { class: "notice", hidden: true });
    main.append(
      el("p", { class: "crumb" }, el("a", { href: "#/locks" }, "← All locks")),
      el("div", { class: "title" }, el("h2", { tabindex: "-1" }, name), this.state, this.actions),
      this.notice, this.holders, el("div", { class: "two" }, this.queue, this.events), this.history);
    this.reading = repeat(() => this.read(), 2000);
    this.ticking = setInterval(() => this.tick(), 500);
  },

  leave() {
    this.reading.stop();
    clearInterval(this.ticking);
  },

  onEvent(event) {
    if (event.lock === this.name) this.reading.soon();
  },

  onReset() { this.reading.soon(); },

  onKey(key) {
    if (key === "Escape") location.hash = "#/locks";
    else if (key === "a" || key === "b") $(`[data-act="${key === "a" ? "ask" : "break"}"]`, this.actions)?.click();
    else return false;
    return true;
  },

  async read() {
    const name = this.name;
    try {
      const sent = performance.now();
      const lock = await get(lockPath(name));
      if (name !== this.name) return;
      this.lock = stamp(lock, sent);
      this.show();
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
      this.notice.hidden = false;
      this.notice.builtFrom = null;
      setClass(this.notice, "notice bad");
      setText(this.notice, `The lock cannot be read: ${problem.message}`);
    }
  },

  show() {
    const { lock } = this;
    const held = lock.holders.length > 0;
    rebuild(this.state, held, () => el("i", { class: held ? "tag g" : "tag" }, held ? "held" : "free"));
    rebuild(this.actions, [held, shared.me?.may], () => {
      const actions = lockActions(() => this.lock);
      actions.prepend(el("button", { type: "button", "data-act": "copy", onclick: () => this.copyLink() }, "Copy link"));
      return actions;
    });
    this.notice.hidden = !(held && lock.asked);
    if (held && lock.asked) {
      setClass(this.notice, "notice");
      rebuild(this.notice, lock.asked, () => [`The holder was asked for this lock${askedBy(lock.asked.by)} at `, timeElement(lock.asked.at), `: ${lock.asked.reason}`]);
    }
    rebuild(this.holders, holdersKey(lock), () => {
      this.holderTicks = [];
      return [
        el("h3", null, lock.holders.length > 1 ? `${number(lock.holders.length)} holders` : "Holder"),
        held ? table("Holders", ["Who", "Host", "Pid", "Mode", "Held for", "Time left", "Token", "Reason"], lock.holders.map((holder, at) => this.holderRow(holder, at)))
          : el("p", { class: "more" }, "Nobody holds this lock."),
      ];
    });
    rebuild(this.queue, queueKey(lock), () => {
      this.queueTicks = [];
      return [
        el("h3", null, "Queue ", el("small", null, lock.waiters.length > 0 ? `${plural(lock.waiters.length, "waiter")}, in order` : "nobody waits")),
        queueList(lock, 200, this.queueTicks),
      ];
    });
    rebuild(this.events, lock.events.map((event) => event.id), () => [
      el("h3", null, "Events"),
      lock.events.length > 0 ? el("ul", { class: "events" }, lock.events.map((event) => eventItem(event, false)))
        : el("p", { class: "more" }, "This server has seen nothing of this lock yet."),
    ]);
    rebuild(this.history, lock.history, () => [
      el("h3", null, "Last holds ", el("small", null, el("a", { href: `#/history?lock=${encodeURIComponent(this.name)}` }, "all in the history"))),
      lock.history.length > 0 ? holdsTable(lock.history, false) : el("p", { class: "more" }, "No hold of this lock has ended since this server keeps a history."),
    ]);
    this.tick();
  },

  holderRow(holder, at) {
    const held = el("td");
    const left = new TimeLeft();
    this.holderTicks.push((lock, passed) => {
      setText(held, duration(lock.holders[at].held_ms + passed));
      left.update(lock.holders[at], passed);
    });
    return el("tr", null, el("td", { class: "name" }, holder.label), el("td", null, holder.host), el("td", null, holder.pid ? String(holder.pid) : "–"),
      el("td", null, modeTag(holder) ?? "exclusive"), held, el("td", null, left.node), el("td", { class: "tok" }, String(holder.token)), el("td", null, holder.reason ?? "–"));
  },

  tick() {
    if (this.lock === null || document.hidden) return;
    const passed = sinceRead(this.lock);
    for (const tick of [...this.holderTicks, ...this.queueTicks]) tick(this.lock, passed);
  },

  async copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      announce("The link to this lock was copied.");
    } catch {
      announce(`The link could not be copied. It is ${location.href}`);
    }
  },
};
