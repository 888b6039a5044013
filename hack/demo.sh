#!/usr/bin/env bash
# The main job end to end, on real pods and a real database. `hack/demo.sh down` removes it all.
set -euo pipefail
source "$(dirname "$0")/cluster.sh"

if [[ ${1:-} == down ]]; then
  if [[ -n $own_cluster ]]; then
    kubectl delete namespace jobqueue-demo --ignore-not-found
    if [[ -x $bin/helm ]] && marked; then
      helm uninstall jobqueue --namespace jobqueue-system --ignore-not-found
      helm uninstall jobqueue-crds --namespace jobqueue-system --ignore-not-found
      kubectl delete namespace jobqueue-system
    fi
  fi
  cluster_down
  exit 0
fi

say "Building the demo"
CGO_ENABLED=0 go build -C "$root" -trimpath -o "$bin/demo" ./hack/demo
cluster_up 60
install_operator
in_cluster env DATABASE_URL="$DATABASE_URL" "$bin/demo" -image "$image"
