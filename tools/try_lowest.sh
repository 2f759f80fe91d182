#!/usr/bin/env bash
# Installs titanrun-core with the oldest versions that its requirements allow, validates all shipped recipes with them, and compares the
# schema of recipes. Needs uv. Usage: bash tools/try_lowest.sh WORK_FOLDER
set -euo pipefail
work=$1
clone=$(cd "$(dirname "$0")/.." && pwd)
uv venv --quiet "$work/lowest"
uv pip install --quiet --python "$work/lowest/bin/python" --resolution lowest-direct "$clone"
cd "$clone"
find recipes \( -name '*.yaml' -o -name '*.toml' \) -not -path '*/parts/*' -print0 | xargs -0 "$work/lowest/bin/titanrun" validate --strict
cmp <("$work/lowest/bin/titanrun" schema) schemas/recipe.schema.json
