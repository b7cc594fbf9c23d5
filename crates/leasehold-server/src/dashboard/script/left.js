// How long a lock is still kept, as a bar that counts down.
//
// An engine tells how much time is left, not of how much: the bar is full at the most that was seen of the same grant, or at the usual TTL above it.

const USUAL_TTLS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 86_400].map((s) => s * 1000);
const fullByToken = new Map();

function fullTime(holder) {
  const seen = Math.max(fullByToken.get(holder.token) ?? 0, holder.time_left_ms);
  if (fullByToken.size > 50_000) fullByToken.clear();
  fullByToken.set(holder.token, seen);
  return USUAL_TTLS.find((ttl) => ttl >= seen) ?? seen;
}

/** Gives what was read the moment of reading, so that its times can be counted on. */
function stamp(lock, now = performance.now()) {
  lock.read = now;
  for (const holder of lock.holders) holder.full = fullTime(holder);
  return lock;
}

function sinceRead(lock) {
  return performance.now() - lock.read;
}

class TimeLeft {
  constructor() {
    this.fill = el("span", { class: "fill" });
    this.text = el("small");
    this.node = el("span", { class: "left" }, el("span", { class: "track", "aria-hidden": "true" }, this.fill), this.text);
  }

  update(holder, passed) {
    const left = Math.max(0, holder.time_left_ms - passed);
    const part = Math.min(1, left / holder.full);
    // Holders renew at a third of their time: below half of it a renewal is late, or nobody renews.
    const state = part < 0.2 ? "ending" : part < 0.5 ? "late" : "";
    setClass(this.node, state === "" ? "left" : `left ${state}`);
    this.fill.style.transform = `scaleX(${part.toFixed(3)})`;
    setText(this.text, left === 0 ? "expired" : state === "ending" ? `ends in ${duration(left)}` : duration(left));
  }
}
