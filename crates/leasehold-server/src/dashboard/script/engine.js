// The engine behind the server, in plain words, and who is asking.

const WORDS = {
  reach: { process: "the tasks of one process", machine: "the processes of one machine", network: "all who reach the store" },
  fairness: { fifo: "first come, first served", random: "no order" },
  safety: { correctness: "correctness: a failure of the store does not let a second holder in", efficiency: "efficiency: a failure of the store can let a second holder in" },
  expiry: {
    ttl: "after the TTL, unless renewed",
    observed: "after the TTL, counted by each client from when it first saw the last renewal",
    session: "with the session of the holder",
  },
  tokens: { hybrid_clock: "a hybrid clock", store_revision: "the revision of the store" },
  survives: { client_killed: "a client that is killed", engine_restart: "a restart of the engine", power_loss: "a power failure", node_loss: "the loss of a node", clock_step: "a step of the clock" },
};

/** Weights of findings, the worst first: the word for it, and how it looks. */
const WEIGHTS = { unfit: ["unfit", "b"], efficiency: ["weak", "b"], warning: ["warning", "w"], unknown: ["unknown", ""], good: ["ok", "g"] };

const VERDICTS = {
  correctness: "fit for correctness: two never hold a lock at once within its validity",
  efficiency: "fit for efficiency: a failure of the store can let a second holder in",
  unfit: "unfit for locks",
};

function word(kind, value) {
  return WORDS[kind][value] ?? String(value);
}

const enginePage = {
  title: "Engine",
  doctor: null,

  enter(main) {
    this.body = el("div", null, el("p", { class: "empty" }, "reading …"));
    main.append(el("h2", { tabindex: "-1" }, "Engine"), this.body);
    this.reading = repeat(() => this.read(), 10_000);
  },

  leave() { this.reading.stop(); },
  onReset() { this.reading.soon(); },

  async read() {
    try {
      const engine = await get("v1/engine");
      this.show(engine);
      // It may take longer, and not everybody may see it.
      this.doctor = await get("v1/doctor").catch(() => null);
      this.show(engine);
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
      rebuild(this.body, problem.message, () => el("p", { class: "notice bad", role: "alert" }, problem.message));
    }
  },

  show(engine) {
    rebuild(this.body, [engine, this.doctor, shared.me], () => this.build(engine));
  },

  buildDoctor({ at, verdict, findings }) {
    const order = Object.keys(WEIGHTS);
    const sorted = findings.toSorted((one, other) => order.indexOf(one.weight) - order.indexOf(other.weight));
    return el("section", { class: "card", "aria-label": "Settings" },
      el("h3", null, "Settings"),
      el("p", { id: "verdict" }, `Verdict: ${VERDICTS[verdict] ?? verdict}.`),
      el("p", null, "As of ", timeElement(at), ". ", el("code", null, "leasehold doctor"), " also tries the engine with locks of its own."),
      sorted.length === 0 ? null : table("What the engine's settings mean for locks", ["", "Checked", "Seen", "Meaning", "What to do"], sorted.map((finding) => {
        const [label, look] = finding.accepted ? ["accepted", ""] : WEIGHTS[finding.weight] ?? [finding.weight, ""];
        return el("tr", { "data-finding": finding.id },
          el("td", null, el("i", { class: `tag ${look}` }, label)),
          el("td", null, finding.place === null ? finding.id : `${finding.id} (${finding.place})`),
          el("td", null, finding.seen), el("td", null, finding.means), el("td", null, finding.fix));
      })));
  },

  build({ scheme, location: place, warnings, requests, capabilities, plain, server }) {
    const yes = (value) => (value ? "yes" : "no");
    const list = (pairs) => el("dl", null, pairs.flatMap(([term, ...what]) => [el("dt", null, term), el("dd", null, what)]));
    const { me } = shared;
    return [
      el("p", { class: "lead" }, el("b", null, scheme), ` at ${place}`),
      warnings.length > 0 ? el("section", { class: "card", "aria-label": "Warnings" }, el("h3", null, plural(warnings.length, "warning")),
        el("ul", { class: "plain warnings" }, warnings.map((warning) => el("li", null, warning)))) : null,
      this.doctor === null ? null : this.buildDoctor(this.doctor),
      el("div", { class: "two" },
        el("section", { class: "card", "aria-label": "In plain words" }, el("h3", null, "In plain words"), el("ul", { class: "plain" }, plain.map((line) => el("li", null, line)))),
        el("section", { class: "card", "aria-label": "Capabilities" }, el("h3", null, "Capabilities"), list([
          ["A lock excludes", word("reach", capabilities.reach)],
          ["Fit for", word("safety", capabilities.safety)],
          ["Order of waiters", word("fairness", capabilities.fairness)],
          ["Shared locks", yes(capabilities.shared)],
          ["Permits", yes(capabilities.permits)],
          ["Guarded records", yes(capabilities.store)],
          ["A lock ends", word("expiry", capabilities.expiry)],
          ["Tokens come from", word("tokens", capabilities.tokens)],
          ["Survives", capabilities.survives.map((one) => word("survives", one)).join(", ") || "nothing of this kind"],
        ]))),
      el("div", { class: "two" },
        el("section", { class: "card", "aria-label": "This server" }, el("h3", null, "This server"), list([
          ["Version", server.version],
          ["Started", timeElement(server.started_at)],
          ["Instance", el("span", { class: "tok" }, server.instance)],
          ["Requests to the engine", number(requests ?? 0)],
          ["Looks at the engine", server.observes_every_ms ? `every ${duration(server.observes_every_ms)}` : "never"],
          ["History", server.history === "file" ? "in a file" : "in memory"],
        ])),
        me === null ? null : el("section", { class: "card", "aria-label": "You" }, el("h3", null, "You"), list([
          ["Access token", me.name ?? (me.tokens ? "none" : "none needed")],
          ["May", ["read", "hold", "break"].filter((scope) => me.may[scope]).join(", ") || "nothing"],
          ["Names", me.prefixes.every((prefix) => prefix === "") ? "all" : me.prefixes.map((prefix) => `${prefix}…`).join(", ")],
          ["Server is read-only", yes(me.read_only)],
        ]))),
    ];
  },
};
