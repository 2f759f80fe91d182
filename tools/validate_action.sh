#!/usr/bin/env bash
# The steps of action.yml: installs titanrun-core, of this clone unless VERSION names one, validates the recipes of the working directory, and annotates them.
# Reads RECIPES, EXCLUDE, LEVEL, STRICT, SARIF, VERSION and PYTHON; exits as `titanrun validate` does.
set -euo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
environment=${RUNNER_TEMP:-$(mktemp -d)}/titanrun
"$PYTHON" -m venv "$environment"
wanted=$clone
[ -z "$VERSION" ] || wanted=titanrun-core==$VERSION
"$environment/bin/python" -m pip --disable-pip-version-check --quiet install "$wanted"

shopt -s globstar nullglob
recipes=()
# patterns, which this loop expands
# shellcheck disable=SC2086,SC2153
for file in $RECIPES; do
    # shellcheck disable=SC2053
    [[ -n $EXCLUDE && $file == $EXCLUDE ]] || recipes+=("$file")
done
if [ "${#recipes[@]}" -eq 0 ]; then
    echo "::error title=titanrun validate::no file matches $RECIPES"
    exit 2
fi
options=(--level "$LEVEL")
[ "$STRICT" != true ] || options+=(--strict)
if [ -n "$SARIF" ]; then
    # its exit code is that of the next command
    "$environment/bin/titanrun" validate "${options[@]}" --format sarif "${recipes[@]}" >"$SARIF" || true
fi
"$environment/bin/titanrun" validate "${options[@]}" --format github "${recipes[@]}"
