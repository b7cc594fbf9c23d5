// One client of npm's redlock: node fleet.mjs KIND PORT,PORT,… NAME TTL_SECONDS, in the folder where it is installed.
// Each line on stdin is a command, answered by one line of JSON: see other.rs.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const installed = createRequire(`${process.cwd()}/`);
const { Cluster, Redis } = installed("ioredis");

const [kind, ports, name, ttlSeconds] = process.argv.slice(2);
const ttl = ttlSeconds * 1000;
const servers = ports.split(",").map((port) => ({ host: "127.0.0.1", port: Number(port) }));
const clients = kind === "redlock4-cluster" ? [new Cluster(servers)] : servers.map((server) => new Redis(server));
const patience = { retryDelay: 10, retryJitter: 10 };
const kinds = {
  redlock4: () => redlock4(installed("redlock")),
  "redlock4-cluster": () => redlock4(installed("redlock")),
  redlock5: () => redlock5(installed("redlock5").default),
};
const { take, wait, release } = kinds[kind]();

/** The release; its key is the name itself. */
function redlock4(Redlock) {
  const once = new Redlock(clients, { ...patience, retryCount: 0 });
  const patient = new Redlock(clients, { ...patience, retryCount: -1 });
  let lock;
  const keep = (taken) => {
    lock = taken;
    return true;
  };
  return {
    take: () => once.lock(name, ttl).then(keep, refused),
    wait: () => patient.lock(name, ttl).then(keep),
    release: () => lock.unlock(),
  };
}

/** The rewrite that never left beta, and that many use. */
function redlock5(Redlock) {
  const settings = (retryCount) => ({ ...patience, retryCount, automaticExtensionThreshold: 0 });
  const once = new Redlock(clients, settings(0));
  const patient = new Redlock(clients, settings(-1));
  for (const redlock of [once, patient]) redlock.on("error", () => {});
  let lock;
  const keep = (taken) => {
    lock = taken;
    return true;
  };
  return {
    take: () => once.acquire([name], ttl).then(keep, refused),
    wait: () => patient.acquire([name], ttl).then(keep),
    release: () => lock.release(),
  };
}

function refused(error) {
  if (["LockError", "ExecutionError"].includes(error.name)) return false;
  throw error;
}

async function contend(rounds, letter, path) {
  for (let round = 0; round < rounds; round++) {
    while (!(await take())) await sleep(5 + 10 * Math.random());
    const seen = readFileSync(path, "utf8");
    await sleep(2);
    writeFileSync(path, seen + letter);
    await release();
    await sleep(10);
  }
  return true;
}

const commands = {
  ping: () => true,
  try: take,
  wait,
  release: () => release().then(() => true),
  contend: (rounds, letter, path) => contend(Number(rounds), letter, path),
};
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  const done = await commands[command](...words);
  console.log(JSON.stringify({ done }));
}
process.exit();
