#!/usr/bin/env bash
# Tests the Python client against a real server, the examples of the documentation, and the dashboard in a real Chromium.
# Uses target/debug/leasehold, or $LEASEHOLD_BIN.
#   clients/python/test.sh            everything
#   clients/python/test.sh client     without the dashboard
set -euo pipefail
cd "$(dirname "$0")"

root="$(cd ../.. && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
venv="$target/python"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
pip() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip 'build>=1.3,<2' 'mypy>=1.18,<3' 'pytest>=8.4,<10' 'selenium>=4.35,<5'

# As users get it: from a wheel.
rm -rf "$target/python-dist"
"$venv/bin/python" -m build --wheel --outdir "$target/python-dist" . >/dev/null
pip --force-reinstall --no-deps "$target"/python-dist/*.whl
"$venv/bin/python" -c 'import leasehold_client, pathlib; assert pathlib.Path(leasehold_client.__file__).with_name("py.typed").exists()'

"$venv/bin/mypy"
"$venv/bin/pytest" -p no:cacheprovider
if [ "${1:-}" != client ]; then
  "$venv/bin/pytest" -p no:cacheprovider -q "$root/crates/leasehold-server/tests/browser"
fi
