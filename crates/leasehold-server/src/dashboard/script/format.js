// Times and people as text.

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  ms = Math.max(0, ms);
  if (ms < 1000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 10) return `${m} m ${String(s % 60).padStart(2, "0")} s`;
  if (m < 60) return `${m} m`;
  const h = Math.floor(m / 60);
  if (h < 24) return `${h} h ${String(m % 60).padStart(2, "0")} m`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

function number(value) {
  return value.toLocaleString("en");
}

function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

function ordinal(value) {
  const tens = value % 100;
  const ending = tens >= 11 && tens <= 13 ? "th" : ["th", "st", "nd", "rd"][value % 10] ?? "th";
  return `${value}${ending}`;
}

/** The time of day, with the date if it is not today. */
function clock(at) {
  const date = new Date(at);
  const two = (value) => String(value).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

function timeElement(at) {
  return el("time", { datetime: at, title: at }, clock(at));
}

function who(claimant) {
  return claimant.host ? `${claimant.label} on ${claimant.host}` : claimant.label;
}

/** The label, and the host as a tag. */
function person(claimant) {
  return [claimant.label, " ", claimant.host ? el("i", { class: "tag", title: claimant.pid ? `pid ${claimant.pid}` : null }, claimant.host) : null];
}

function modeTag(claimant) {
  if (claimant.mode === "shared") return el("i", { class: "tag" }, "shared");
  if (claimant.mode === "permit") return el("i", { class: "tag" }, `1 of ${claimant.permits} permits`);
  return null;
}

function lockLink(name) {
  return el("a", { href: lockHash(name) }, name);
}

function lockHash(name) {
  return `#/lock/${encodeURIComponent(name)}`;
}

const ENDS = {
  released: ["released", ""],
  expired: ["expired", "w"],
  broken: ["broken", "b"],
  kept: ["kept until its time was over", ""],
  gone: ["ended elsewhere", ""],
};

function endTag(end) {
  const [text, kind] = ENDS[end] ?? [end, ""];
  return el("i", { class: `tag ${kind}` }, text);
}

/** An event as a sentence; with the lock's name if it is not plain from where it stands. */
function sentence(event, withLock) {
  const name = withLock ? ` ${event.lock}` : "";
  const by = event.by ? ` by ${event.by}` : "";
  const because = (reason) => (reason ? `: ${reason}` : "");
  switch (event.event) {
    case "waiting": return `${who(event)} is waiting${withLock ? ` for ${event.lock}` : ""}${event.ahead ? ` (${ordinal(event.ahead)})` : ""}`;
    case "left": return `${who(event)} stopped waiting${withLock ? ` for ${event.lock}` : ""} after ${duration(event.waited_ms)}`;
    case "acquired": return `${who(event)} acquired${name}, token …${String(event.token).slice(-4)}`;
    case "ended": {
      const after = event.held_ms === null || event.held_ms === undefined ? "" : ` after ${duration(event.held_ms)}`;
      if (event.end === "released") return `${who(event)} released${name}${after}`;
      if (event.end === "expired") return `${who(event)} let${withLock ? name : " the lock"} expire${after}`;
      if (event.end === "broken") return `${who(event)} lost${withLock ? name : " the lock"}${after}: it was broken`;
      if (event.end === "kept") return `${who(event)} finished with${withLock ? name : " the lock"}${after}; it stayed taken until its time was over`;
      return `${who(event)} no longer holds${withLock ? name : " the lock"}${after}`;
    }
    case "asked": return `${withLock ? event.lock : "the lock"} was asked for${by}${because(event.ask_reason)}`;
    case "broken": return `${withLock ? event.lock : "the lock"} was broken${by}${because(event.break_reason)}`;
    default: return `${event.event}${name}`;
  }
}

function eventItem(event, withLock) {
  const kind = event.event === "broken" || event.end === "broken" ? "bad" : event.end === "expired" || event.event === "asked" ? "warn" : "";
  return el("li", null, timeElement(event.at), el("span", { class: `what ${kind}` }, sentence(event, withLock)));
}
