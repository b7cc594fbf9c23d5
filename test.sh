#!/usr/bin/env bash
# Installs what is missing on a Debian machine with Rust, and passes all tests.
#   ./test.sh          everything
#   ./test.sh quick    without the lints on single features
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }

# One line per need: the command that shows that it is there, and the Debian package that brings it.
missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need cc build-essential
need unshare util-linux
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
  for feature in "" sqlite files redis postgres mysql etcd zookeeper zookeeper-tls tower blocking tracing metrics bench conformance; do
    cargo clippy -q -p leasehold --no-default-features --features "$feature" -- -D warnings
  done
fi

say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc -q --workspace --all-features --no-deps

say "other people's locks"
crates/leasehold/tests/fleets/install.sh "${CARGO_TARGET_DIR:-target}/fleets"

say "tests"
cargo test --workspace --all-features

# In the suite it takes some seconds; this is the minute that is promised.
say "a minute of kill -9 on SQLite"
LEASEHOLD_TORTURE_SECONDS=60 cargo test --workspace --all-features --test sqlite -- killed_at_random
