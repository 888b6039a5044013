// pg-boss: work() with its defaults; or two loops of fetch and complete by the thousand,
// which no polling interval holds back; or work() that listens and polls as often as it may.
import { PgBoss } from "pg-boss";

const batchSize = 1000;
const loops = 2;

async function boss(spec, options) {
  const instance = new PgBoss({ connectionString: spec.url, ...options });
  instance.on("error", (error) => console.error(error));
  await instance.start();
  return instance;
}

export const pgboss = {
  async setup(spec) {
    const instance = await boss(spec, {});
    for (const queue of spec.queues) await instance.createQueue(queue, { notify: spec.mode === "prompt" });
    await instance.stop({ graceful: false });
  },

  async producer(spec) {
    const instance = await boss(spec, { max: spec.connections, supervise: false, schedule: false });
    const [queue] = spec.queues;
    return async (n, payload) => {
      if (n === 1) await instance.send(queue, payload());
      else await instance.insert(queue, Array.from({ length: n }, () => ({ data: payload() })));
    };
  },

  async worker(spec, ran) {
    const instance = await boss(spec, spec.mode === "prompt" ? { useListenNotify: true } : {});
    return spec.mode === "fast" ? fetching(instance, spec, ran) : working(instance, spec, ran);
  },
};

function working(instance, spec, ran) {
  const prompt = { batchSize: 100, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };
  const options = spec.mode === "prompt" ? prompt : {};
  const handler = async (jobs) => {
    for (const job of jobs) ran(job.data);
  };
  return {
    start: async () => {
      for (const queue of spec.queues) await instance.work(queue, options, handler);
    },
    stop: () => instance.stop({ timeout: 5000 }),
  };
}

function fetching(instance, spec, ran) {
  const [queue] = spec.queues;
  let stopping = false;
  let running = [];
  const loop = async () => {
    while (!stopping) {
      const jobs = await instance.fetch(queue, { batchSize });
      for (const job of jobs) ran(job.data);
      if (jobs.length) await instance.complete(queue, jobs.map((job) => job.id));
      else await new Promise((resolve) => setTimeout(resolve, 5));
    }
  };
  const die = (error) => {
    console.error(error);
    process.exit(1);
  };
  return {
    start: async () => {
      running = Array.from({ length: loops }, () => loop().catch(die));
    },
    stop: async () => {
      stopping = true;
      await Promise.all(running);
      await instance.stop({ timeout: 5000 });
    },
  };
}
