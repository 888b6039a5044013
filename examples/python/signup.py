"""Enqueues in the transaction of the business change: both are committed, or neither.

    python3 signup.py ada@example.com ...
"""
import os
import sys

import psycopg
from psycopg.types.json import Jsonb

with psycopg.connect(os.environ["JOBQUEUE_DATABASE_URL"]) as db:
    for address in sys.argv[1:]:
        with db.transaction():
            db.execute("INSERT INTO users (email) VALUES (%s)", (address,))
            db.execute("SELECT jobqueue.enqueue('emails', 'email', %s)", (Jsonb({"to": address}),))
