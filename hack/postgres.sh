#!/usr/bin/env bash
# Makes sure that PostgreSQL's server programs are here: the tests start servers of their own.
set -euo pipefail
shopt -s nullglob

have=(/usr/lib/postgresql/*/bin/initdb)
if [[ -n ${JOBQUEUE_TEST_PG_BIN:-} || ${#have[@]} -gt 0 ]]; then
  exit 0
fi
if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
  echo "PostgreSQL's server is missing: install it (Debian: apt-get install postgresql), or set JOBQUEUE_TEST_PG_BIN to the folder with initdb and postgres." >&2
  exit 1
fi
echo "Installing PostgreSQL's server ..."
apt-get update -qq
# No cluster of Debian's own is wanted: it would take the port and the memory.
mkdir -p /etc/postgresql-common
[[ -e /etc/postgresql-common/createcluster.conf ]] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
