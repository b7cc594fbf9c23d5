#!/usr/bin/env bash
# Whether leasehold can be added to a project that uses SQLite by other means. A program links libsqlite3-sys once, so cargo must find a
# version that suits both. The oldest rusqlite of the range is compiled as well; the newest is that of Cargo.lock.
#   resolution.sh TARGET    compiles into the folder TARGET
set -euo pipefail
target=$(realpath -m "${1:-target/resolution}")
crate=$(realpath "$(dirname "$0")/..")
project=$(mktemp -d)
trap 'rm -rf "$project"' EXIT
mkdir "$project/src"
echo 'fn main() {}' >"$project/src/main.rs"

# A project with leasehold and one dependency more.
beside() {
  rm -f "$project/Cargo.lock"
  cat >"$project/Cargo.toml" <<TOML
[package]
name = "project"
version = "0.0.0"
edition = "2024"

[dependencies]
leasehold = { path = "$crate", default-features = false, features = ["sqlite"] }
$1

[workspace]
TOML
  (cd "$project" && cargo generate-lockfile -q) || {
    echo "leasehold cannot be used beside $1" >&2
    exit 1
  }
  echo "$1: $(grep -A1 'name = "libsqlite3-sys"' "$project/Cargo.lock" | grep version)"
}

for version in 0.37 0.38 0.39 0.40 0.41; do
  beside "rusqlite = \"$version\""
done
beside 'diesel = { version = "2", features = ["sqlite"] }'
beside 'sqlx = { version = "0.9", default-features = false, features = ["sqlite"] }'
beside 'sqlx = { version = "0.8", default-features = false, features = ["sqlite"] }'
beside 'rusqlite = "0.32"'
(cd "$project" && CARGO_TARGET_DIR="$target" cargo check -q)
echo "compiles with rusqlite 0.32"
