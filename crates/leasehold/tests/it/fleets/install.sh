#!/usr/bin/env bash
# Installs the packages that the tests called `fleets` run, and the servers of `dynamodb` and `s3`, into this folder, unless they are there and unchanged.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
cd "$1"

if ! cmp -s "$here/requirements.txt" venv/requirements.txt; then
  rm -rf venv
  python3 -m venv venv
  venv/bin/pip install -q --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" venv/
fi

if ! cmp -s "$here/package-lock.json" node_modules/package-lock.json; then
  cp "$here/package.json" "$here/package-lock.json" .
  npm ci --no-audit --no-fund --loglevel=error
  cp "$here/package-lock.json" node_modules/
fi
