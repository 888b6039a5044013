#!/usr/bin/env bash
# Asserts that regenerating changes nothing and that modules are tidy.
set -euo pipefail
cd "$(dirname "$0")/.."

digest() { git ls-files -co --exclude-standard -z | xargs -0 sha256sum 2>/dev/null | sha256sum; }

before=$(digest)
hack/generate.sh
go mod tidy
for module in hack/tools hack/image hack/localcluster hack/bench; do go -C "$module" mod tidy; done
if [[ $(digest) != "$before" ]]; then
  git --no-pager diff --stat
  echo "Generated files or go.mod files were not current: commit what 'make generate' and 'go mod tidy' changed." >&2
  exit 1
fi
echo "Generated files and modules are current."
