#!/usr/bin/env bash
# Builds the wheel, installs it into an empty environment outside the clone, and runs ls, cp, validate and train there.
# Usage: bash tools/try_wheel.sh WORK_FOLDER
set -euo pipefail
work=$1
clone=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$work/empty"
"$clone/.venv/bin/python" -m build --wheel --outdir "$work" "$clone" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$clone/.venv/bin/python" -m venv "$work/venv"
torch_version=$(sed -n 's/^torch==//p' "$clone/constraints.txt")
pip="$work/venv/bin/python -m pip --disable-pip-version-check --quiet"
$pip install --no-deps --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch_version"
$pip install --constraint "$clone/constraints.txt" "$work"/titanrun-*.whl
cd "$work/empty"
titanrun=$work/venv/bin/titanrun
"$titanrun" ls recipes
"$titanrun" cp llama3_debug my.yaml
"$titanrun" validate --strict --level environment my.yaml
"$titanrun" train my.yaml dump_folder=run training.steps=3 lr_scheduler.warmup_steps=1 validation.enable=false
test -f run/checkpoint/step-3/resolved.yaml
