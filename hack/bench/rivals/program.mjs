// The contender's end of the protocol (../protocol.go) for rivals written for Node.js.
import { createInterface } from "node:readline";

import { graphile } from "./graphile.mjs";
import { pgboss } from "./pgboss.mjs";

const programs = { graphile, pgboss };
const spec = JSON.parse(process.argv[2]);

// What libraries log goes to standard error: standard output is the protocol's.
for (const level of ["log", "info", "debug"]) console[level] = console.error;

function say(event) {
  return new Promise((resolve) => process.stdout.write(JSON.stringify(event) + "\n", resolve));
}

// The wall clock in microseconds, which Date.now() has in milliseconds only.
function nowMicros() {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}

// Orders in the order in which they come; no more of them means that the bench is gone.
const lines = createInterface({ input: process.stdin });
const orders = [];
let awaiting = null;
lines.on("line", (line) => (awaiting ? awaiting(line) : orders.push(line)));
lines.on("close", () => process.exit(1));

async function order(expected) {
  const got = orders.length ? orders.shift() : await new Promise((resolve) => (awaiting = resolve));
  awaiting = null;
  if (got !== expected) throw new Error(`got the order "${got}" instead of "${expected}"`);
}

function payloads() {
  const rest = '{"at":1234567890123456,"pad":""}'.length;
  const pad = "x".repeat(Math.max(spec.payloadBytes - rest, 0));
  return () => ({ at: nowMicros(), pad });
}

async function produce(program) {
  const enqueue = await program.producer(spec);
  const payload = payloads();
  await say({ event: "ready" });
  await order("go");
  const start = performance.now();
  let next = 0;
  const producer = async () => {
    for (;;) {
      const first = next;
      next += spec.bulk;
      if (first >= spec.jobs) return;
      if (spec.rate > 0) {
        const wait = (first / spec.rate) * 1000 - (performance.now() - start);
        if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      }
      await enqueue(Math.min(spec.bulk, spec.jobs - first), payload);
    }
  };
  await Promise.all(Array.from({ length: spec.connections }, producer));
  await say({ event: "done", seconds: (performance.now() - start) / 1000 });
}

async function work(program) {
  let count = 0;
  const latencies = [];
  const { start, stop } = await program.worker(spec, (payload) => {
    if (spec.latencies) latencies.push(nowMicros() - payload.at);
    count++;
  });
  await say({ event: "ready" });
  await order("go");
  await start();
  let told = -1;
  const timer = setInterval(() => {
    if (count !== told) say({ event: "ran", ran: (told = count) });
  }, 20);
  await order("stop");
  clearInterval(timer);
  await stop();
  await say({ event: "end", ran: count, latencies });
}

async function main() {
  const program = programs[spec.program];
  if (!program) throw new Error(`there is no program "${spec.program}"`);
  if (spec.role === "setup") await program.setup(spec);
  else if (spec.role === "produce") await produce(program);
  else if (spec.role === "work") await work(program);
  else throw new Error(`there is no role "${spec.role}"`);
}

main().then(
  () => process.exit(0),
  async (error) => {
    await say({ event: "error", error: String(error?.stack ?? error) });
    process.exit(1);
  },
);
