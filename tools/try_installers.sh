#!/usr/bin/env bash
# Installs titanrun-core from its wheel with uv and pipx, with each Python from 3.11 to 3.13 that is here, and validates the shipped recipes.
# Needs uv and pipx. Usage: bash tools/try_installers.sh WORK_FOLDER
set -euo pipefail
work=$1
clone=$(cd "$(dirname "$0")/.." && pwd)
wheels=$work/wheels
uv build --quiet --wheel --out-dir "$wheels" "$clone"
export UV_TOOL_DIR=$work/tools UV_TOOL_BIN_DIR=$work/bin UV_FIND_LINKS=$wheels UV_PYTHON_DOWNLOADS=never
export PIPX_HOME=$work/pipx PIPX_BIN_DIR=$work/pipx-bin
unset PYTHONPATH
mkdir -p "$work/empty"
cd "$work/empty"
version=$(sed -n 's/^VERSION = "\(.*\)"/\1/p' "$clone/titanrun/config/version.py")

uv tool install --quiet titanrun-core
test "$("$work/bin/titanrun" --version)" = "titanrun $version"
"$work/bin/titanrun" cp llama3_debug mine.yaml
uvx --quiet --from titanrun-core titanrun validate --strict mine.yaml
uv tool uninstall --quiet titanrun-core
test ! -e "$work/bin/titanrun"

pipx install --quiet "$wheels"/titanrun_core-*.whl
"$work/pipx-bin/titanrun" validate --strict mine.yaml
pipx uninstall titanrun-core >/dev/null

tried=0
for python in 3.11 3.12 3.13; do
    uv python find --quiet "$python" >/dev/null 2>&1 || { echo "Python $python: not here"; continue; }
    uv venv --quiet --python "$python" "$work/$python"
    uv pip install --quiet --python "$work/$python/bin/python" titanrun-core
    find "$clone/recipes" \( -name '*.yaml' -o -name '*.toml' \) -not -path '*/parts/*' -print0 |
        xargs -0 "$work/$python/bin/titanrun" validate --strict --quiet
    echo "Python $python: all recipes validate"
    tried=$((tried + 1))
done
test "$tried" -gt 0
