#!/bin/sh
# Builds the wheel with the compiled data plane and unpacks it into FOLDER, to be put first on PYTHONPATH. Usage: compiled.sh FOLDER
# Does nothing when FOLDER is younger than every source.
set -eu
folder=$1
command -v cc >/dev/null || {
    echo "compiled: there is no C compiler. On Debian and Ubuntu: apt-get install gcc libc6-dev" >&2
    exit 2
}
[ -e "$folder/.built" ] && [ -z "$(find router pyproject.toml scripts/compiled_data_plane.py -name '*.pyc' -prune -o -type f -newer "$folder/.built" -print | head -n 1)" ] && exit 0
rm -rf "$folder"
mkdir -p "$folder"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
DOLPHIN_COMPILE=1 python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$wheels" .
python -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$wheels"/*.whl
touch "$folder/.built"
