#!/bin/sh
# Creates the virtual environment with exactly the locked versions, then installs this checkout into it.
set -eu
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: Python 3.11 or newer is needed, $PYTHON is $("$PYTHON" --version 2>&1). Try: make PYTHON=python3.12 setup" >&2
    exit 2
}
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || {
    echo "setup: could not create $VENV. On Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
}
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
