#!/bin/sh
# Writes the versions and hashes that the project is developed, tested and packaged with. Usage: lock.sh FILE
# An existing FILE keeps its versions where they still fit pyproject.toml; remove it to take the newest.
set -eu
uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
    --all-extras --custom-compile-command "make lock" --output-file "$1" pyproject.toml scripts/build-requirements.in
