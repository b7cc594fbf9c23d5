#!/usr/bin/env bash
# Makes the packages into dist/: a Debian package, a Python wheel that carries the command, one with the
# client for Python, and, where podman or docker is there, a container image.
#   packaging/build.sh              with the profile for packages, which takes minutes to build
#   PROFILE=dev packaging/build.sh  quick, to try the packages out
set -euo pipefail
cd "$(dirname "$0")/.."

profile="${PROFILE:-dist}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
case "$profile" in
  dev) built="$target/debug" ;;
  *) built="$target/$profile" ;;
esac
work="$PWD/target/packaging"
rm -rf dist "$work/man" "$work/completions"
mkdir -p dist "$work/man" "$work/completions"

say() { printf '\n== %s\n' "$*"; }

say "the command, with all engines"
cargo build --locked --profile "$profile" -p leasehold-cli --features all-engines
leasehold="$built/leasehold"
"$leasehold" man --out "$work/man"
gzip -9n "$work"/man/*
"$leasehold" completions bash >"$work/completions/leasehold"
"$leasehold" completions zsh >"$work/completions/_leasehold"
"$leasehold" completions fish >"$work/completions/leasehold.fish"

say "Debian package"
packaging/tools.sh cargo-deb
PATH="$target/tools/bin:$PATH"
cargo deb -q --no-build --no-strip --profile "$profile" -p leasehold-cli --output dist/

say "Python wheel"
if ! [ -x "$work/venv/bin/maturin" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
fi
(cd packaging/python && "$work/venv/bin/maturin" build --quiet --profile "$profile" --out ../../dist)

say "Python client"
"$work/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist clients/python

say "container image"
engine="$(packaging/container-engine.sh)"
if [ -n "$engine" ]; then
  "$engine" build -f packaging/Containerfile --build-arg PROFILE="$profile" -t leasehold .
  "$engine" save leasehold | gzip >dist/leasehold-image.tar.gz
else
  echo "not made: there is neither podman nor a docker whose daemon answers"
fi

say "dist/"
ls -l dist
