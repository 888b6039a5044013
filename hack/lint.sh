#!/usr/bin/env bash
# Lints the product's module and the ones under hack/ with the same rules.
set -euo pipefail
cd "$(dirname "$0")/.."
lint=$PWD/bin/golangci-lint
if [[ ! -x $lint || hack/tools/go.mod -nt $lint ]]; then
  echo "Building golangci-lint ..."
  go -C hack/tools build -o "$lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint
fi
for module in . hack/tools hack/image hack/localcluster hack/bench; do
  echo "golangci-lint run ($module)"
  (cd "$module" && "$lint" run ./...)
done
