#!/usr/bin/env bash
# Runs the end-to-end suite. The cluster and its database are made for the run and removed
# after it, unless KEEP=1 or the cluster is the user's own. E2E_ARGS are more arguments of
# ginkgo, such as --focus="connection budget".
set -euo pipefail
source "$(dirname "$0")/cluster.sh"
# A cluster of its own, so that a demo may stand beside it.
cluster_name=${JOBQUEUE_CLUSTER:-jobqueue-e2e}

say "Building the end-to-end suite"
CGO_ENABLED=0 go test -C "$root" -trimpath -c -o "$bin/e2e.test" ./test/e2e
go -C "$root/hack/tools" build -o "$bin/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
build_helm
trap '[[ ${KEEP:-} == 1 ]] || cluster_down' EXIT
cluster_up 100
install_operator
# Specs mostly wait, each in a namespace and a database of its own, so several run at once.
in_cluster env DATABASE_URL="$DATABASE_URL" IMAGE="$image" JOBQUEUE_BIN="$bin" JOBQUEUE_ROOT="$root" \
  "$bin/ginkgo" -v --procs="${E2E_PROCS:-2}" --timeout=30m ${E2E_ARGS:-} "$bin/e2e.test"
