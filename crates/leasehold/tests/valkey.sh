#!/usr/bin/env bash
# Puts valkey-server into this folder, unless it is there or installed. It is taken from the packages of this Debian or of its backports, without
# installing it: nothing of the system is changed. Says so if it cannot be had: the tests on Valkey are then left out.
set -euo pipefail
target="$1"

if command -v valkey-server >/dev/null 2>&1 || "$target/usr/bin/valkey-server" --version >/dev/null 2>&1; then
  exit 0
fi
. /etc/os-release
rm -rf "$target"
mkdir -p "$target/parts" "$target/lists/partial"
target="$(cd "$target" && pwd)"
from="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian"
for suite in "${VERSION_CODENAME:-}" "${VERSION_CODENAME:-}-backports"; do
  printf '%s %s main\n' "$from" "$suite"
done >"$target/parts/debian.list"
apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$target/parts" -o "Dir::State::lists=$target/lists"
  -o APT::Sandbox::User=)

get() {
  cd "$target"
  "${apt[@]}" update && "${apt[@]}" download valkey-server valkey-tools && for package in *.deb; do dpkg -x "$package" .; done
}
if ! (get) >"$target/log" 2>&1 || ! "$target/usr/bin/valkey-server" --version >/dev/null 2>&1; then
  tail -n 3 "$target/log" >&2
  echo "valkey-server cannot be had here: the tests on Valkey are left out" >&2
fi
rm -rf "$target/parts" "$target/lists" "$target"/*.deb
