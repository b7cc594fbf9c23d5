#!/usr/bin/env bash
# Compares the public API of the library with packaging/api-baseline.json.xz, and fails if a change breaks programs that use it. Additions pass.
#   packaging/semver.sh           compares
#   packaging/semver.sh accept    makes the API as it is now the baseline: for a release, and for a breaking change before 1.0 that is meant
# The baseline is what rustdoc writes about the API, so that neither the history nor a published version is needed.
# packaging/tools.sh installs cargo-semver-checks if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
tools="$target/tools"
baseline=packaging/api-baseline.json.xz
PATH="$tools/bin:$PATH"

# The same selection of packages and features as for the documentation, so that no dependency is checked again. Only rustdoc may use what is
# unstable: in the environment of all, RUSTC_BOOTSTRAP would make cargo build some dependencies again.
mkdir -p "$tools"
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec "%s" "$@"\n' "$(rustc --print sysroot)/bin/rustdoc" >"$tools/rustdoc-json"
chmod +x "$tools/rustdoc-json"
RUSTDOC="$tools/rustdoc-json" \
  RUSTDOCFLAGS="-Z unstable-options --output-format=json --document-hidden-items --cap-lints=allow" \
  cargo doc -q --workspace --lib --all-features --no-deps
current="$target/doc/leasehold.json"

if [ "${1:-}" = accept ]; then
  xz -9c "$current" >"$baseline"
  ls -l "$baseline"
  exit
fi

packaging/tools.sh cargo-semver-checks
xz -dc "$baseline" >"$tools/api-baseline.json"
cargo semver-checks --current-rustdoc "$current" --baseline-rustdoc "$tools/api-baseline.json" --release-type minor
