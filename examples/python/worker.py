"""A whole worker on the SQL protocol (docs/sql-protocol.md), with psycopg 3. Tried with 3.1 and Python 3.11.

It has two connections: one claims and writes results, the other heartbeats and listens. If either fails, the process
ends, and what it ran runs again once its lease is over. Let something start it again, as a Deployment does.
"""
import logging
import os
import random
import select
import signal
import sys
import threading
import time
import uuid
from collections import deque
from http.server import BaseHTTPRequestHandler, HTTPServer

import psycopg
from psycopg.rows import namedtuple_row

QUEUE = os.environ["JOBQUEUE_QUEUE"]
SCHEMA = os.environ.get("JOBQUEUE_SCHEMA", "jobqueue")
SLOTS = int(os.environ.get("JOBQUEUE_SLOTS", 10))
GRACE = int(os.environ.get("JOBQUEUE_GRACE_SECONDS", 90))
WORKER = uuid.uuid4()  # of this process alone
REFS = "%(ids)s::bigint[], %(tokens)s::uuid[]"
SUCCEED = f"SELECT id FROM {SCHEMA}.succeed({REFS}, p_worker => %(worker)s)"
FAIL = f"SELECT id FROM {SCHEMA}.fail({REFS}, %(errors)s::text[], %(permanent)s::boolean[], p_worker => %(worker)s)"
HEARTBEAT = f"SELECT * FROM {SCHEMA}.heartbeat(%(worker)s, %(queue)s, {REFS})"
RELEASE = f"SELECT id FROM {SCHEMA}.release({REFS}, p_worker => %(worker)s)"

held = {}  # the jobs of this process by token, until their result is written
ended = deque()  # those whose handler has returned
wake, stopping, drained = threading.Event(), threading.Event(), threading.Event()


def email(job):
    if "to" not in job.run.payload:
        raise ValueError("no recipient")  # to the dead letters at once, see end
    if job.stop.wait(job.run.payload.get("seconds", 0)):  # a handler that takes long looks at job.stop
        raise TimeoutError("stopped")
    logging.info("sending to %s once per %s/%s", job.run.payload["to"], QUEUE, job.run.id)


HANDLERS = {"email": email}


class Job:
    def __init__(self, run):
        self.run, self.error = run, None
        self.stop = threading.Event()  # out of time, lost, or the process ends
        self.until = time.monotonic() + run.timeout_ms / 1000
        threading.Thread(target=self.handle, daemon=True).start()

    def handle(self):
        try:
            HANDLERS[self.run.kind](self)
        except Exception as error:
            logging.warning("job %s, attempt %s: %r", self.run.id, self.run.attempt, error)
            self.error = error
        ended.append(self)
        wake.set()


# By the application's name the operator tells connections of job queues from others; prepared statements are not for poolers.
def connect():
    return psycopg.connect(os.environ["JOBQUEUE_DATABASE_URL"], autocommit=True, row_factory=namedtuple_row,
                           application_name=f"jobqueue:worker:{QUEUE}", keepalives_idle=10, tcp_user_timeout=10000,
                           prepare_threshold=None)


def refs(jobs):
    ids, tokens = [job.run.id for job in jobs], [job.run.token for job in jobs]
    return {"queue": QUEUE, "worker": WORKER, "ids": ids, "tokens": tokens}


def end(db, statement, jobs):
    errors = [repr(job.error) for job in jobs]
    permanent = [isinstance(job.error, ValueError) for job in jobs]
    try:
        accepted = {row.id for row in db.execute(statement, refs(jobs) | {"errors": errors, "permanent": permanent})}
    except psycopg.errors.LockNotAvailable:  # nothing was changed: one by one, and the locked one later
        return ended.extend(jobs) if len(jobs) == 1 else [end(db, statement, [job]) for job in jobs]
    for job in jobs:
        del held[job.run.token]
        if job.run.id not in accepted:
            logging.warning("job %s, attempt %s: lost, its result is dropped", job.run.id, job.run.attempt)


def write(db):
    jobs = [ended.popleft() for _ in range(len(ended))]
    end(db, SUCCEED, [job for job in jobs if job.error is None])
    end(db, FAIL, [job for job in jobs if job.error is not None])


def heartbeats(db):
    db.add_notify_handler(lambda n: n.payload == QUEUE and wake.set())
    db.execute(f"LISTEN {SCHEMA}")
    while not drained.is_set():
        sent, jobs = time.monotonic(), list(held.values())
        row = db.execute(HEARTBEAT, refs(jobs)).fetchone()
        for job in jobs:
            if job.run.token in row.lost:
                job.stop.set()
        # Takes back what dead workers ran; the operator's CronJob does so as well.
        db.execute(f"SELECT FROM {SCHEMA}.reap(%s, p_retention => false, p_kinds => %s)", (QUEUE, list(HANDLERS)))
        while time.monotonic() < sent + row.policy["heartbeat_seconds"] and not drained.is_set():
            if select.select([db], [], [], 0.2)[0]:
                db.execute("SELECT")  # reads the notifications


class Probe(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


logging.basicConfig(level=logging.INFO)
signals = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
threading.Thread(target=lambda: (signal.sigwait(signals), stopping.set(), wake.set()), daemon=True).start()
if "JOBQUEUE_HTTP_ADDR" in os.environ:  # where the operator has its pods probed
    host, _, port = os.environ["JOBQUEUE_HTTP_ADDR"].rpartition(":")
    threading.Thread(target=HTTPServer((host, int(port)), Probe).serve_forever, daemon=True).start()
db, beating = connect(), threading.Thread(target=heartbeats, args=(connect(),), daemon=True)
beating.start()
logging.info("worker %s of queue %s: %s slots, kinds %s", WORKER, QUEUE, SLOTS, ", ".join(HANDLERS))
looks = 0
while not stopping.is_set():
    wake.clear()
    write(db)
    for job in held.values():
        if time.monotonic() > job.until:
            job.stop.set()
    if (free := SLOTS - len(held)) > 0:
        runs = db.execute(f"SELECT * FROM {SCHEMA}.claim(%s, %s, %s, %s, %s)",
                          (QUEUE, WORKER, free, list(HANDLERS), os.environ.get("JOBQUEUE_POD_NAME"))).fetchall()
        held.update((run.token, Job(run)) for run in runs)
        looks = 2 if runs else looks - 1
    # What was enqueued while a claim ran may not have been announced: after a claim of some, look again soon, twice.
    wake.wait(0.025 if looks > 0 and len(held) < SLOTS else random.uniform(1, 2))
    if not beating.is_alive():
        sys.exit("no heartbeats any more")

last = time.monotonic() + GRACE - min(5, GRACE / 2)
while held and time.monotonic() < last:
    wake.wait(0.1)
    wake.clear()
    write(db)
for job in held.values():
    job.stop.set()
end(db, RELEASE, list(held.values()))
drained.set()
beating.join()
db.execute(f"SELECT {SCHEMA}.unregister(%s)", (WORKER,))
