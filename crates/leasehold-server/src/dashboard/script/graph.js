// Who waits for whom, as a picture and as a table; deadlocks first.

const MOST_DRAWN = 150;

const graphPage = {
  title: "Waits-for",

  enter(main) {
    this.body = el("div", null, el("p", { class: "empty" }, "reading …"));
    main.append(
      el("h2", { tabindex: "-1" }, "Who waits for whom"),
      el("p", { class: "lead" }, "An arrow goes from who waits to who holds the lock. Those who wait for each other in a circle are in a deadlock: none of them can go on until one gives up, expires or is broken."),
      this.body);
    this.reading = repeat(() => this.read(), 3000);
  },

  leave() { this.reading.stop(); },
  onEvent() { this.reading.soon(); },
  onReset() { this.reading.soon(); },

  async read() {
    try {
      const graph = await get("v1/graph");
      rebuild(this.body, graph, () => this.build(graph));
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
      rebuild(this.body, problem.message, () => el("p", { class: "notice bad", role: "alert" }, problem.message));
    }
  },

  build(graph) {
    if (graph.edges.length === 0) return el("section", { class: "card" }, el("p", { class: "empty" }, "Nobody waits for anybody."));
    const byId = new Map(graph.claimants.map((claimant) => [claimant.id, claimant]));
    const { claimants, edges, left } = drawn(graph);
    const parts = [];
    if (graph.cycles.length > 0) parts.push(el("ul", { class: "cycles", "aria-label": "Deadlocks" }, graph.cycles.map((cycle) => el("li", null, cycleSentence(cycle, byId, graph.edges)))));
    parts.push(el("section", { class: "card", "aria-label": "Graph" },
      el("h3", null, plural(graph.cycles.length, "deadlock"), " ", el("small", null, `${plural(claimants.length + left, "claimant")} in all${left > 0 ? `, of which ${number(left)} are not drawn` : ""}`)),
      el("div", { class: "graph-scroll", tabindex: "0", role: "region", "aria-label": "Picture of who waits for whom" }, picture(claimants, edges, graph.cycles))));
    const rows = graph.edges.map((edge) => el("tr", null,
      el("td", null, person(byId.get(edge.from))), el("td", { class: "name" }, lockLink(edge.lock)), el("td", null, person(byId.get(edge.to)))));
    parts.push(el("section", { class: "card", "aria-label": "The same as a table" }, el("h3", null, "The same as a table"), table("Who waits for whom", ["Waits", "for", "held by"], rows)));
    return parts;
  },
};

/** Those of cycles and those who wait for them first, up to what can be looked at. */
function drawn(graph) {
  const busy = new Set(graph.edges.flatMap((edge) => [edge.from, edge.to]));
  const inCycle = new Set(graph.cycles.flat());
  const claimants = graph.claimants.filter((claimant) => busy.has(claimant.id));
  claimants.sort((one, other) => Number(inCycle.has(other.id)) - Number(inCycle.has(one.id)));
  const kept = claimants.slice(0, MOST_DRAWN);
  const ids = new Set(kept.map((claimant) => claimant.id));
  return { claimants: kept, edges: graph.edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to)), left: claimants.length - kept.length };
}

function cycleSentence(cycle, byId, edges) {
  const parts = cycle.map((id, at) => {
    const next = cycle[(at + 1) % cycle.length];
    const edge = edges.find((one) => one.from === id && one.to === next);
    return `${who(byId.get(id))} waits for ${edge ? edge.lock : "a lock"}, held by ${who(byId.get(next))}`;
  });
  return `Deadlock: ${parts.join("; ")}.`;
}

function short(text, most) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

function picture(claimants, edges, cycles) {
  const { places, width, height } = layOut(claimants, edges);
  const cycleSteps = new Set(cycles.flatMap((cycle) => cycle.map((id, at) => `${id} ${cycle[(at + 1) % cycle.length]}`)));
  const inCycle = new Set(cycles.flat());
  const pad = 30;
  const head = (id, kind) => svg("marker", { id, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" },
    svg("path", { class: kind, d: "M0 0 10 5 0 10z" }));
  const label = `${plural(claimants.length, "claimant")}, ${plural(edges.length, "arrow")}, ${plural(cycles.length, "deadlock")}. The table below says the same.`;
  const [all, tall] = [width + 2 * pad, height + 2 * pad];
  return svg("svg", { class: "graph", viewBox: `${-pad} ${-pad} ${all} ${tall}`, width: all, height: tall, role: "img", "aria-label": label },
    svg("defs", null, head("head", "head"), head("head-cycle", "head cycle")),
    edges.map((edge) => arrow(edge, places, cycleSteps.has(`${edge.from} ${edge.to}`))),
    claimants.map((claimant) => box(claimant, places.get(claimant.id), inCycle.has(claimant.id))));
}

/** A bent line from the edge of one box to the edge of another, with the lock's name at its middle. */
function arrow(edge, places, cycle) {
  const from = places.get(edge.from);
  const to = places.get(edge.to);
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  // To the left, which is the outer side of a circle that goes with the clock; the two lines of a pair go apart.
  const bend = cycle ? Math.min(46, length / 5) : Math.min(14, length / 12);
  const middle = { x: (from.x + to.x) / 2 + (dy / length) * bend * 2, y: (from.y + to.y) / 2 - (dx / length) * bend * 2 };
  const start = borderToward(from, middle, 0);
  const end = borderToward(to, middle, 4);
  const at = { x: (start.x + 2 * middle.x + end.x) / 4, y: (start.y + 2 * middle.y + end.y) / 4 };
  return svg("g", { class: cycle ? "edge cycle" : "edge" },
    svg("path", { d: `M${start.x.toFixed(1)} ${start.y.toFixed(1)}Q${middle.x.toFixed(1)} ${middle.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`, "marker-end": `url(#head${cycle ? "-cycle" : ""})` }),
    svg("a", { href: lockHash(edge.lock) }, svg("text", { x: at.x, y: at.y + 4 }, short(edge.lock, 22), svg("title", null, edge.lock))));
}

/** Where the line from the middle of a box toward a point leaves the box. */
function borderToward(box_, point, space) {
  const [dx, dy] = [point.x - box_.x, point.y - box_.y];
  const scale = Math.min((NODE.width / 2 + space) / Math.max(1e-6, Math.abs(dx)), (NODE.height / 2 + space) / Math.max(1e-6, Math.abs(dy)));
  return { x: box_.x + dx * Math.min(1, scale), y: box_.y + dy * Math.min(1, scale) };
}

function box(claimant, place, cycle) {
  const holds = claimant.holds.length === 0 ? "holds nothing" : `holds ${claimant.holds.join(", ")}`;
  const [x, y] = [place.x - NODE.width / 2, place.y - NODE.height / 2];
  return svg("g", { class: cycle ? "node cycle" : "node" },
    svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: 9 }),
    svg("text", { class: "who", x: x + 12, y: y + 20 }, short(claimant.label, 24)),
    svg("text", { x: x + 12, y: y + 35 }, short(`${claimant.host ?? ""}${claimant.pid ? ` · pid ${claimant.pid}` : ""}`, 30)),
    svg("text", { x: x + 12, y: y + 50 }, short(holds, 30)),
    svg("title", null, `${who(claimant)}, ${holds}`));
}
