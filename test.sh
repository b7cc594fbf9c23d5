#!/usr/bin/env bash
# Installs what is missing on a Debian machine with Rust, and passes all tests.
#   ./test.sh          everything
#   ./test.sh quick    without the lints on single features, and without cargo-semver-checks, whose first build takes minutes
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }

# One line per need: the command that shows that it is there, and the Debian package that brings it.
missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need cc build-essential
need unshare util-linux
need xz xz-utils
need redis-server redis-server
[ -e /usr/share/java/zookeeper.jar ] || missing+=(zookeeper)
need java default-jre-headless
need openssl openssl
need etcd etcd-server
need etcdctl etcd-client
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing+=(postgresql)
need psql postgresql-client
PATH="$PATH:/usr/sbin" need pgbouncer pgbouncer
PATH="$PATH:/usr/sbin" need mariadbd mariadb-server
need mariadb mariadb-client
need python3 python3
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
need node nodejs
need npm npm
need systemd-analyze systemd
need curl curl
need chromium chromium
need chromedriver chromium-driver
[ -d /usr/share/fonts/truetype ] || missing+=(fonts-dejavu-core)

if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
command -v cargo >/dev/null 2>&1 || {
  echo "Rust is missing: see https://rustup.rs" >&2
  exit 1
}

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"

say "format"
cargo fmt --all --check

say "lints"
cargo clippy --workspace --all-targets --all-features -- -D warnings
if [ "${1:-}" != quick ]; then
  for feature in "" sqlite files redis postgres mysql etcd zookeeper zookeeper-tls dynamodb s3 http tower blocking tracing metrics bench conformance; do
    cargo clippy -q -p leasehold --no-default-features --features "$feature" -- -D warnings
  done
  cargo clippy -q -p leasehold-cli -- -D warnings
  cargo clippy -q -p leasehold-cli --features serve -- -D warnings
fi

if [ "${1:-}" != quick ]; then
  say "beside other users of SQLite"
  crates/leasehold/tests/resolution.sh "${CARGO_TARGET_DIR:-target}/resolution"
fi

say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc -q --workspace --all-features --no-deps
cargo run -q -p xtask -- book

say "other people's locks, and servers of the tests"
crates/leasehold/tests/it/fleets/install.sh "${CARGO_TARGET_DIR:-target}/fleets"

say "Valkey"
crates/leasehold/tests/valkey.sh "${CARGO_TARGET_DIR:-target}/valkey"

# Ends a command, with all that it has started, that takes longer than this; Ctrl-C does not reach a group of its own.
in_time() {
  timeout -k 1m "$@" &
  local running=$!
  trap 'kill "$running"' INT TERM
  wait "$running"
  trap - INT TERM
}

# Takes minutes to build, and is needed at the end. The tests mostly wait, and this runs only while no test has anything to do.
tools="${CARGO_TARGET_DIR:-target}/tools.log"
if [ "${1:-}" = quick ]; then
  needed=(cargo-deb)
else
  needed=(cargo-deb cargo-semver-checks)
fi
when_idle=(nice -n 19)
if chrt --idle 0 true 2>/dev/null; then
  when_idle=(chrt --idle 0)
fi
"${when_idle[@]}" packaging/tools.sh "${needed[@]}" >"$tools" 2>&1 &
tools_built=$!

say "tests"
# It is `cargo test --workspace --all-features`, and tells a host that stood still from a bug: xtask/src/test_run.rs.
in_time 3h cargo run -q -p xtask -- test

say "benchmarks: the comparison"
python3 -m unittest discover -q bench

say "Python client, and the dashboard in Chromium"
clients/python/test.sh

# In the suite it takes some seconds; this is the minute that is promised.
say "a minute of kill -9 on SQLite"
LEASEHOLD_TORTURE_SECONDS=60 in_time 30m cargo test --workspace --all-features --test conformance -- --exact sqlite::fuzz::processes_killed_at_random_break_nothing

say "packages"
wait "$tools_built" || {
  cat "$tools" >&2
  exit 1
}
packages="${CARGO_TARGET_DIR:-target}/package"
rm -f "$packages"/*.crate
# What cargo has unpacked from packages of the same version before, and built of it: it would take that for the new ones.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/leasehold*-[0-9]* "${CARGO_TARGET_DIR:-target}"/debug/.fingerprint/leasehold*
cargo package -q --workspace --exclude xtask --allow-dirty
for package in "$packages"/*.crate; do
  for file in LICENSE-MIT LICENSE-APACHE README.md; do
    tar -xOzf "$package" --wildcards "*/$file" >"$packages/$file" || {
      echo "$package has no $file: copy it into the crate's folder" >&2
      exit 1
    }
    [ "$file" = README.md ] || cmp "$packages/$file" "$file"
  done
done
if [ "${1:-}" != quick ]; then
  say "the API beside its baseline"
  packaging/semver.sh
fi
packaging/test.sh
