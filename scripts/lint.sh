#!/bin/sh
# All checks but the tests. Stops at the first that fails.
set -eu
ruff format --check .
ruff check .
mypy
lint-imports
python scripts/router_configuration.py --check
copy=$(mktemp)
trap 'rm -f "$copy"' EXIT
cp requirements.lock "$copy"
sh scripts/lock.sh "$copy"
diff -u requirements.lock "$copy" || { echo "lint: requirements.lock does not fit pyproject.toml. Run: make lock" >&2; exit 1; }
