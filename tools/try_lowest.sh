#!/usr/bin/env bash
# Installs titanrun-core with the oldest versions that its requirements allow, validates all shipped recipes with them, and compares the
# schema of recipes. With a wheel of torch it then does the same with titanrun, and trains, exports and generates. Needs uv.
# Usage: bash tools/try_lowest.sh WORK_FOLDER [TORCH_WHEEL]
set -euo pipefail
work=$1
torch=${2:-}
clone=$(cd "$(dirname "$0")/.." && pwd)
unset PYTHONPATH
install() { uv pip install --quiet --python "$work/lowest/bin/python" --resolution lowest-direct "$@"; }
titanrun() { "$work/lowest/bin/titanrun" "$@"; }
uv venv --quiet "$work/lowest"
install "$clone"
cd "$clone"
find recipes \( -name '*.yaml' -o -name '*.toml' \) -not -path '*/parts/*' -print0 | xargs -0 "$work/lowest/bin/titanrun" validate --strict
cmp <(titanrun schema) schemas/recipe.schema.json

test -n "$torch" || exit 0
torch=$(realpath "$torch")
install "$torch" "$clone" "$clone/packages/titanrun"
cd "$work"
steps=(training.steps=2 lr_scheduler.warmup_steps=1 validation.enable=false)
titanrun train llama3_debug dump_folder=pretrained "${steps[@]}" checkpoint.interval=2
titanrun train llama3_sft_debug dump_folder=tuned "${steps[@]}" 'converters=[{name: lora, rank: 2}]'
titanrun train llama3_debug_float8 dump_folder=float8 "${steps[@]}"
titanrun train llama3_debug dump_folder=small_states "${steps[@]}" optimizer.name=adamw_8bit
titanrun checkpoint export pretrained exported --format hf
titanrun generate pretrained --prompt the --max-new-tokens 4
