// Requests to the server that this page came from, whatever the path it is under.

const BASE = new URL("..", location.href);
const TIMEOUT = 15_000;

/** What the server, or the way to it, has against a request. */
class Problem extends Error {
  constructor(kind, detail, advice) {
    super(advice ? `${detail}; ${advice}` : detail);
    this.kind = kind;
  }
}

let accessToken = null;

function headers(more) {
  return accessToken === null ? more : { ...more, Authorization: `Bearer ${accessToken}` };
}

async function problemOf(response) {
  try {
    const problem = await response.json();
    return new Problem(problem.kind ?? "unexpected", problem.detail ?? response.statusText, problem.advice);
  } catch {
    return new Problem("unexpected", `the server answered ${response.status} ${response.statusText}`);
  }
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), { cache: "no-store", credentials: "omit", redirect: "error", ...options });
  } catch (error) {
    if (options.signal?.aborted && options.signal.reason?.name !== "TimeoutError") throw error;
    throw new Problem("no_answer", "the server does not answer");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function get(path, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const response = await send(search.size ? `${path}?${search}` : path, { headers: headers({}), signal: AbortSignal.timeout(TIMEOUT) });
  return response.json();
}

async function post(path, body) {
  const response = await send(path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(TIMEOUT),
  });
  return response.json();
}

function lockPath(name, action) {
  return `v1/locks/${encodeURIComponent(name)}${action ? `/${action}` : ""}`;
}

/** Server-sent events, read with fetch because EventSource sends no Authorization header. Ends when the stream does. */
async function* eventStream(path, lastId, signal) {
  const response = await send(path, { headers: headers(lastId === null ? {} : { "Last-Event-ID": lastId }), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  yield { name: "comment" }; // it is open
  let text = "";
  let event = { name: "message", data: [], id: null };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const lines = text.split("\n");
    text = lines.pop();
    for (let line of lines) {
      if (line.endsWith("\r")) line = line.slice(0, -1);
      if (line === "") {
        if (event.data.length > 0) yield { name: event.name, id: event.id, data: event.data.join("\n") };
        event = { name: "message", data: [], id: null };
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "") yield { name: "comment" };
      else if (field === "event") event.name = content;
      else if (field === "data") event.data.push(content);
      else if (field === "id") event.id = content;
    }
  }
}
