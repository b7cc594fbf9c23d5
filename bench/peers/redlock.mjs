// One waiter of npm's redlock: node redlock.mjs ADDRESS,… LOCK LAST_HOLDER, in the folder where it is installed.
// The protocol is described in bench/README.md. The settings are those of its README, which are its defaults: ten more tries,
// 200 to 400 ms apart, then an error; the caller tries again.

import { openSync, readSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const installed = createRequire(`${process.cwd()}/`);
const { Redis } = installed("ioredis");
const Redlock = installed("redlock");

const [addresses, name, path] = process.argv.slice(2);
const redlock = new Redlock(
  addresses.split(",").map((address) => new Redis(address)),
  { driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 200 },
);
const lastHolder = openSync(path, "r+");
const me = BigInt(process.pid);
const idle = new Int32Array(new SharedArrayBuffer(4));

const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC
/** Blocks the thread: timers are too coarse. */
const sleep = (ms) => Atomics.wait(idle, 0, 0, ms);

/** Undefined if it was not obtained by then: many of them on several servers can keep each other out for long. */
async function acquire(end) {
  for (;;) {
    try {
      return await redlock.lock(name, 30_000);
    } catch (error) {
      if (error.name !== "LockError") throw error;
      if (end && now() > end) return undefined;
    }
  }
}

async function cycle(end) {
  const cycles = [];
  while (now() < end) {
    const began = now();
    await (await acquire()).unlock();
    cycles.push(Number(now() - began));
  }
  return { cycles };
}

async function handOver(end) {
  const holds = [];
  const id = Buffer.alloc(8);
  const last = Buffer.alloc(8);
  id.writeBigUInt64LE(me);
  while (now() < end) {
    const lock = await acquire(end);
    if (!lock) break;
    const began = now();
    writeSync(lastHolder, id, 0, 8, 0);
    sleep(Math.random());
    holds.push([Number(began), Number(now())]);
    await lock.unlock();
    const isMe = () => {
      readSync(lastHolder, last, 0, 8, 0);
      return last.equals(id);
    };
    while (isMe() && now() < end) sleep(0.1);
  }
  return { holds };
}

console.log("{}");
for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  const end = BigInt(task.end);
  sleep(Math.max(0, Number(BigInt(task.start) - now()) / 1e6));
  console.log(JSON.stringify(await (task.do === "cycle" ? cycle(end) : handOver(end))));
}
process.exit();
