#!/bin/sh
# Creates .venv with the run-time and developer packages: setup.sh [PYTHON]
# Needs Python 3.11+ with venv, a C and a C++ compiler; as root on Debian or Ubuntu it installs what is missing.
set -eu
python=${1:-python3}

missing=""
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
command -v c++ >/dev/null || missing="$missing g++"
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $missing
    else
        echo "setup: missing packages; run: sudo apt-get install$missing" >&2
        exit 2
    fi
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $("$python" -V) is too old, Python 3.11 or newer is needed; run: make PYTHON=python3.11 ..." >&2
    exit 2
}

[ -x .venv/bin/pip ] || echo "setup: installing packages into .venv; the first time takes a few minutes" >&2
[ -x .venv/bin/pip ] || "$python" -m venv .venv
# The lists live in pyproject.toml alone; tomllib reads them so that nothing is built before the build tools exist.
.venv/bin/python - <<'PY' >.venv/requirements.txt
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["dev"], sep="\n")
PY
.venv/bin/pip install -qq --disable-pip-version-check -r .venv/requirements.txt
