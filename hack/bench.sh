#!/usr/bin/env bash
# Measures the queue against its rivals. Arguments are the benchmark's (-help lists them);
# the report goes to standard output, progress to standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/postgres.sh >&2
rivals=hack/bench/rivals
if ! command -v npm >/dev/null; then
  echo "npm is missing: the rivals for Node.js are left out (Debian: apt-get install nodejs npm)." >&2
elif [[ ! $rivals/node_modules/.package-lock.json -nt $rivals/package-lock.json ]]; then
  echo "Installing the rivals for Node.js ..." >&2
  # pg-boss asks for a newer Node.js than Debian's, but runs on 20 too.
  npm ci --prefix "$rivals" --ignore-scripts --engine-strict=false --loglevel=error >&2
fi
go -C hack/bench build -o "$PWD/bin/bench" .
# gue leaves its tables to its users: they are made from its own file.
gue=$(go -C hack/bench list -m -f '{{.Dir}}' github.com/vgarvardt/gue/v5)/migrations/schema.sql
exec bin/bench -rivals "$rivals" -gue-schema "$gue" "$@"
