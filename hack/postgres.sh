#!/usr/bin/env bash
# Makes sure that what the tests start themselves is here: PostgreSQL's server programs, and
# PgBouncer and libfaketime, without which only the tests that need them are skipped.
set -euo pipefail
shopt -s nullglob

packages=()
server=(/usr/lib/postgresql/*/bin/initdb)
[[ -n ${JOBQUEUE_TEST_PG_BIN:-} || ${#server[@]} -gt 0 ]] || packages+=(postgresql)
[[ -n $(command -v pgbouncer) || -x /usr/sbin/pgbouncer ]] || packages+=(pgbouncer)
faketime=(/usr/lib/*/faketime/libfaketime.so.1)
[[ ${#faketime[@]} -gt 0 ]] || packages+=(libfaketime)
[[ ${#packages[@]} -gt 0 ]] || exit 0

if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
  if [[ ${packages[0]} == postgresql ]]; then
    echo "PostgreSQL's server is missing: install it (Debian: apt-get install postgresql), or set JOBQUEUE_TEST_PG_BIN to the folder with initdb and postgres." >&2
    exit 1
  fi
  echo "Some tests are skipped: install ${packages[*]} (Debian) to run them." >&2
  exit 0
fi
echo "Installing ${packages[*]} ..."
apt-get update -qq
# No cluster of Debian's own is wanted: it would take the port and the memory.
mkdir -p /etc/postgresql-common
[[ -e /etc/postgresql-common/createcluster.conf ]] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
# Nor a PgBouncer of Debian's own: without a runlevel, no service is started.
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
