// What all pages share: who asks, the state of the engine, and the stream of events.

const KEPT_EVENTS = 300;
const SILENCE = 25_000; // the server says something every 10 s
const MAX_BACKOFF = 15_000;
const EVENTS = new Set(["waiting", "left", "acquired", "ended", "asked", "broken"]);

const shared = {
  me: null,
  engine: null,
  summary: null,
  problem: null,
  events: [], // the newest first
  connected: false,
};

const bus = new EventTarget();

function tell(name, detail) {
  bus.dispatchEvent(new CustomEvent(name, { detail }));
}

function pause(ms) {
  return new Promise((resolve) => { setTimeout(resolve, ms); });
}

/** Resolves at once if the page is seen, else when it is. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
}

/**
 * Calls `read` again and again until `stop` is called: at once, then after `period`, and after `soon` has been called. A call that took long makes the
 * next come later. `read` does not run while nobody sees the page.
 */
function repeat(read, period) {
  let stopped = false;
  let wake = () => {};
  let wanted = false;
  const loop = async () => {
    while (!stopped) {
      await seen();
      if (stopped) return;
      wanted = false;
      const began = performance.now();
      await read();
      const took = performance.now() - began;
      if (stopped) return;
      // A burst of events is one reading.
      await pause(Math.max(150, 2 * took));
      if (!wanted && !stopped) {
        await new Promise((resolve) => {
          wake = resolve;
          setTimeout(resolve, Math.max(period, 6 * took));
        });
      }
    }
  };
  loop();
  return {
    soon() { wanted = true; wake(); },
    stop() { stopped = true; wake(); },
  };
}

async function readState() {
  try {
    shared.summary = await get("v1/summary");
    if (shared.engine === null || !shared.summary.engine_ok) shared.engine = await get("v1/engine");
    shared.problem = null;
  } catch (problem) {
    shared.problem = problem;
    if (problem.kind === "unauthorized") signInAgain();
  }
  showState();
  tell("state");
}

function showState() {
  const { engine, summary, problem } = shared;
  const dot = $("#dot");
  const text = $("#engine-text");
  if (problem !== null) {
    setClass(dot, "dot down");
    text.replaceChildren(problem.kind === "no_answer" ? "the server does not answer" : problem.message);
    return;
  }
  if (engine === null || summary === null) return;
  const fit = engine.capabilities.safety === "correctness" ? "fit for correctness" : "fit for efficiency";
  const state = summary.engine_ok ? `${summary.engine_ms} ms` : "does not answer";
  setClass(dot, `dot ${!summary.engine_ok ? "down" : shared.connected ? "ok" : "slow"}`);
  text.replaceChildren(el("b", null, engine.scheme), ` · ${fit} · ${state}`, shared.connected ? "" : " · no live events");
}

/** Follows the events for ever, across broken connections and servers that start again. */
async function followEvents() {
  let lastId = null;
  let backoff = 500;
  for (;;) {
    const ended = new AbortController();
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => ended.abort(), SILENCE);
    };
    // A browser has six connections to a server over HTTP/1.1: tabs that nobody sees must not keep one each.
    const unseen = () => { if (document.hidden) ended.abort(); };
    document.addEventListener("visibilitychange", unseen, { signal: ended.signal });
    addEventListener("pagehide", () => ended.abort(), { signal: ended.signal });
    try {
      await seen();
      alive();
      const path = lastId === null ? "v1/events?replay=50" : "v1/events";
      for await (const event of eventStream(path, lastId, ended.signal)) {
        alive();
        backoff = 500;
        setConnected(true);
        if (event.id !== null && event.id !== undefined) lastId = event.id;
        if (event.name === "reset") tell("reset");
        else if (EVENTS.has(event.name)) take(JSON.parse(event.data));
      }
    } catch (problem) {
      if (problem.kind === "unauthorized") await signInAgain();
    } finally {
      clearTimeout(silence);
      ended.abort();
    }
    if (document.hidden) {
      await seen();
    } else {
      setConnected(false);
      await pause(backoff * (0.5 + Math.random()));
      backoff = Math.min(MAX_BACKOFF, backoff * 2);
    }
    tell("reset"); // whatever was missed meanwhile
  }
}

function setConnected(connected) {
  if (shared.connected === connected) return;
  shared.connected = connected;
  showState();
}

function take(event) {
  shared.events.unshift(event);
  if (shared.events.length > KEPT_EVENTS) shared.events.length = KEPT_EVENTS;
  tell("event", event);
}
