#!/usr/bin/env bash
# Runs the end-to-end suite. The cluster and its database are made for the run and removed
# after it, unless KEEP=1 or the cluster is the user's own.
set -euo pipefail
source "$(dirname "$0")/cluster.sh"
# A cluster of its own, so that a demo may stand beside it.
cluster_name=${JOBQUEUE_CLUSTER:-jobqueue-e2e}

say "Building the end-to-end suite"
CGO_ENABLED=0 go test -C "$root" -trimpath -c -o "$bin/e2e.test" ./test/e2e
build_helm
trap '[[ ${KEEP:-} == 1 ]] || cluster_down' EXIT
cluster_up 60
install_operator
in_cluster env DATABASE_URL="$DATABASE_URL" IMAGE="$image" JOBQUEUE_BIN="$bin" JOBQUEUE_ROOT="$root" \
  "$bin/e2e.test" -ginkgo.v -ginkgo.timeout=30m ${E2E_ARGS:-}
