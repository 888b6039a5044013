#!/usr/bin/env bash
# Regenerates what is derived from the Go types: deep copies, CRDs, RBAC, and the charts' copies.
set -euo pipefail
cd "$(dirname "$0")/.."
gen() { go tool -modfile=hack/tools/go.mod controller-gen "$@"; }

gen object paths=./api/...
gen crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir=config/crd/bases
go -C hack/tools run ./crdtrim template "$PWD/config/crd/bases/jobqueue.dev_jobqueues.yaml"
gen rbac:roleName=jobqueue-operator paths=./controllers/... output:rbac:dir=config/rbac
cp config/crd/bases/*.yaml charts/jobqueue-crds/files/
cp config/rbac/*role.yaml charts/jobqueue-operator/files/
