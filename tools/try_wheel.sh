#!/usr/bin/env bash
# Builds wheels and sdists of both distributions, checks their metadata, and installs them outside the clone: titanrun-core alone
# for text work and the page of titanrun ui, then titanrun, with which a recipe trains. Usage: bash tools/try_wheel.sh WORK_FOLDER
set -euo pipefail
work=$1
clone=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$work/empty"
for distribution in "$clone" "$clone/packages/titanrun"; do
    "$clone/.venv/bin/python" -m build --outdir "$work" "$distribution" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
done
"$clone/.venv/bin/python" -m venv "$work/venv"
pip="$work/venv/bin/python -m pip --disable-pip-version-check --quiet"
cd "$work/empty"
titanrun=$work/venv/bin/titanrun

# the text tools alone
bytes() { du -sb "$work"/venv/lib/python3*/site-packages | cut -f1; }
before=$(bytes)
$pip install --no-compile --constraint "$clone/constraints.txt" "$work"/titanrun_core-*.whl
size=$((($(bytes) - before) / 1000000))
echo "titanrun-core with its dependencies: $size MB"
test "$size" -le 35
"$titanrun" ls recipes
"$titanrun" cp llama3_debug my.yaml
"$titanrun" validate --strict --level environment my.yaml
code=0
said=$("$titanrun" train my.yaml dump_folder=run 2>&1) || code=$?
test "$code" -eq 2
test "$said" = $'error[usage]: this command needs PyTorch\n  = help: pip install titanrun'
test ! -e run

# the page of titanrun ui, file by file
$pip install --constraint "$clone/constraints.txt" "$(echo "$work"/titanrun_core-*.whl)[ui]"
XDG_STATE_HOME=$work/state "$work/venv/bin/python" - "$titanrun" <<'PYTHON'
import json
import subprocess
import sys
from importlib.metadata import files
from urllib.request import urlopen

[manifest] = [path for path in files("titanrun-core") if path.match("titanrun/ui/static/manifest.json")]
names = json.loads(manifest.read_text())["files"]
assert len(names) > 5
command = [sys.argv[1], "ui", "--no-browser"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        link = server.stdout.readline().strip()
        assert b'id="app"' in urlopen(link).read()
        for name in names:
            with urlopen(f"{link.partition('/?')[0]}/static/{name}") as answer:
                assert answer.read() == manifest.locate().with_name(name).read_bytes(), name
    finally:
        server.terminate()
PYTHON

# everything
torch_version=$(sed -n 's/^torch==//p' "$clone/constraints.txt")
$pip install --no-deps --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch_version"
$pip install --constraint "$clone/constraints.txt" --find-links "$work" "$work"/titanrun-*.whl
"$titanrun" train my.yaml dump_folder=run training.steps=3 lr_scheduler.warmup_steps=1 validation.enable=false
test -f run/checkpoint/step-3/resolved.yaml
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import files, metadata

paths = {str(path) for path in files("titanrun-core")}
assert {"titanrun/py.typed", "titanrun/shipped/recipes/llama3_debug.yaml"} <= paths
assert {path.parts[0] for path in files("titanrun")} == {"titanrun-0.1.0.dist-info"}
assert metadata("titanrun").get_all("Classifier") == metadata("titanrun-core").get_all("Classifier")
PYTHON

# of both, only titanrun-core has code
$pip uninstall --yes titanrun
"$titanrun" --version
"$titanrun" validate --strict my.yaml

$pip install "twine>=6.1,<8"
"$work/venv/bin/twine" check --strict "$work"/titanrun-* "$work"/titanrun_core-*
