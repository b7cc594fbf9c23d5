#!/usr/bin/env bash
# Makes the packages, installs each as a user would, and runs a command under a lock with it.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "${1:-}" = installed ] || PROFILE="${PROFILE:-dev}" packaging/build.sh
# dpkg gives the files that it installs to root.
[ "$(id -u)" -eq 0 ] || exec unshare --map-root-user bash "$0" installed

root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT

# Runs the installed command, once with the lock held, and checks that it is what the packages should hold.
try() {
  local leasehold="$1" said
  export LEASEHOLD_URL="sqlite:$root/locks.db"
  said="$("$leasehold" run demo -- "$leasehold" show demo --json)"
  case "$said" in
    *'"holders":[{'*) ;;
    *) echo "$leasehold: nobody holds the lock: $said" >&2 && return 1 ;;
  esac
  # It has all engines: the URL is understood, and only the server is missing.
  for url in redis://127.0.0.1:1 redis+sentinel://127.0.0.1:1/x redis+cluster://127.0.0.1:1 redlock://127.0.0.1:1 postgres://me@127.0.0.1:1/db mysql://me@127.0.0.1:1/db etcd://127.0.0.1:1 zookeeper://127.0.0.1:1 "dynamodb://k:s@locks?endpoint=http://127.0.0.1:1" "s3://k:s@locks?endpoint=http://127.0.0.1:1" http://127.0.0.1:1; do
    local code=0
    "$leasehold" --url "$url" show demo 2>"$root/error" || code=$?
    [ "$code" = 69 ] || { echo "$url: exit code $code: $(cat "$root/error")" >&2 && return 1; }
  done
}

# Into a directory of its own, so that the machine stays as it is.
mkdir -p "$root/deb/var/lib/dpkg/"{info,updates}
touch "$root/deb/var/lib/dpkg/status"
dpkg --root="$root/deb" --force-not-root --force-depends --log=/dev/null -i dist/*.deb
try "$root/deb/usr/bin/leasehold"
for page in leasehold leasehold-run leasehold-elect leasehold-serve; do
  gzip -t "$root/deb/usr/share/man/man1/$page.1.gz"
done
bash -n "$root/deb/usr/share/bash-completion/completions/leasehold"
# systemd reads the unit as the host would: its command must be where it says.
systemd-analyze verify --man=no --recursive-errors=no --root="$root/deb" "leasehold-elect@scheduler.service" leasehold.service

python3 -m venv "$root/venv"
"$root/venv/bin/pip" install --quiet --disable-pip-version-check --no-index dist/*.whl
try "$root/venv/bin/leasehold"
engine="$(packaging/container-engine.sh)"
if [ -n "$engine" ]; then
  "$engine" load -q -i dist/leasehold-image.tar.gz
  # As it is, and with its locks on a volume that the next container finds.
  [ "$("$engine" run --rm leasehold run demo -- echo ran)" = ran ]
  volume="leasehold-test-$$"
  "$engine" run --rm -v "$volume:/var/lib/leasehold" leasehold acquire demo --ttl 1h >/dev/null
  code=0
  "$engine" run --rm -v "$volume:/var/lib/leasehold" leasehold run demo --wait 0 -- true || code=$?
  "$engine" volume rm "$volume" >/dev/null
  [ "$code" = 75 ] || { echo "the lock on the volume was not held: exit code $code" >&2 && exit 1; }
  echo "the packages and the container image work"
else
  echo "the packages work; the container image was NOT tested: there is neither podman nor a docker whose daemon answers"
fi
