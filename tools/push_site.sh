#!/usr/bin/env bash
# Puts the built site into the branch `site` of a repository, beside the sites of other versions; a web server shows that branch.
# Usage: tools/push_site.sh SITE REPOSITORY [--release]
set -euo pipefail
cd "$(dirname "$0")/.."
site="$1" repository="$2" release=("${@:3}")
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# no such branch before the first time
if [ -n "$(git ls-remote --heads "$repository" site)" ]; then
    git clone --quiet --depth 1 --branch site "$repository" "$work/site"
else
    git init --quiet --initial-branch site "$work/site"
fi
"${PYTHON:-python3}" tools/publish_site.py "$site" "$work/site" "${release[@]}"
cd "$work/site"
# GitHub Pages shows all files as they are
touch .nojekyll
git add --all
git -c user.name=titanrun -c user.email=titanrun@users.noreply.github.com commit --quiet --allow-empty --message "Publish the documentation"
git push --quiet "$repository" HEAD:refs/heads/site
