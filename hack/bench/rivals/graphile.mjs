// Graphile Worker: run() with its defaults; or with a local queue, many jobs at once and
// completions that are written together; or with many jobs at once that it polls for often.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const task = "noop";
const quiet = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

async function pool(connectionString, max) {
  const connections = new pg.Pool({ connectionString, max });
  connections.on("error", (error) => console.error(error));
  const held = await Promise.all(Array.from({ length: max }, () => connections.connect()));
  for (const client of held) client.release();
  return connections;
}

// By mode. A local queue makes for many jobs per second, not for early ones.
const settings = {
  "": {},
  fast: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
  prompt: { concurrentJobs: 24, pollInterval: 100 },
};

export const graphile = {
  async setup(spec) {
    const utils = await makeWorkerUtils({ connectionString: spec.url, logger: quiet });
    await utils.migrate();
    await utils.release();
  },

  async producer(spec) {
    const pgPool = await pool(spec.url, spec.connections);
    const utils = await makeWorkerUtils({ pgPool, logger: quiet });
    return async (n, payload) => {
      if (n === 1) await utils.addJob(task, payload());
      else await utils.addJobs(Array.from({ length: n }, () => ({ identifier: task, payload: payload() })));
    };
  },

  async worker(spec, ran) {
    const pgPool = await pool(spec.url, 10);
    let runner;
    const options = {
      pgPool,
      logger: quiet,
      noHandleSignals: true,
      parsedCronItems: [],
      taskList: { [task]: async (payload) => ran(payload) },
      preset: { worker: settings[spec.mode] },
    };
    return {
      start: async () => {
        runner = await run(options);
      },
      stop: () => runner.stop(),
    };
  },
};
