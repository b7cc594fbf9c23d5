#!/usr/bin/env bash
# Installs the cargo commands that the packages and the comparison of the API need into the target directory, unless they are there.
# Building cargo-semver-checks takes some 13 minutes of processor time, cargo-deb two.
#   packaging/tools.sh                   all
#   packaging/tools.sh cargo-deb         one
set -euo pipefail
cd "$(dirname "$0")/.."

tools="${CARGO_TARGET_DIR:-$PWD/target}/tools"
PATH="$tools/bin:$PATH"
[ $# -gt 0 ] || set -- cargo-deb cargo-semver-checks

for tool in "$@"; do
  case "$tool" in
    # It compresses the package itself, which is slow without optimisations.
    cargo-deb) version=3.8.0 profile=release ;;
    cargo-semver-checks) version=0.51.0 profile=dev ;;
    *) echo "unknown tool: $tool" >&2 && exit 64 ;;
  esac
  command -v "$tool" >/dev/null 2>&1 ||
    cargo install --locked --quiet --profile "$profile" --root "$tools" --target-dir "$tools/build" --config 'profile.dev.debug=false' "$tool@$version"
done
