"""Put the built site into a folder that holds the site of each version, for a web server.

The folder gets dev/ by default, and with --release the folder of this version, such as 0.1/, and a
copy of it, latest/. versions.json lists what is there for the selector of versions, and the
start page leads to the latest release, or to dev/ before there is one.

Usage: python tools/publish_site.py SITE FOLDER [--release]
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from titanrun.config.version import VERSION
from tools.write_redirects import build_redirect

DEVELOPMENT, LATEST = "dev", "latest"
RELEASE = re.compile(r"\d+\.\d+")


def publish_site(site: Path, folder: Path, *, is_release: bool, version: str = VERSION) -> None:
    """Put a site into the folder, in place of an older one of the same version.

    Raises:
        ValueError: The site is not built.
    """
    if not (site / "index.html").is_file():
        raise ValueError(f"{site} is not a built site: make docs")
    folder.mkdir(parents=True, exist_ok=True)
    name = version.rpartition(".")[0] if is_release else DEVELOPMENT
    replace_folder(site, folder / name)
    releases = find_releases(folder)
    if releases:
        replace_folder(folder / releases[0], folder / LATEST)
    (folder / "versions.json").write_text(
        json.dumps(build_versions(folder, releases), indent=2) + "\n", encoding="utf-8"
    )
    start = LATEST if releases else DEVELOPMENT
    (folder / "index.html").write_text(build_redirect(f"{start}/", "titanrun"), encoding="utf-8")


def replace_folder(source: Path, target: Path) -> None:
    """Copy a folder, first beside the old one, so that readers find a whole one at any time."""
    fresh, old = (target.with_name(f".{target.name}.{word}") for word in ("new", "old"))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(source, fresh)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def find_releases(folder: Path) -> list[str]:
    """Return the versions that the folder has, newest first."""
    names = [path.name for path in folder.iterdir() if RELEASE.fullmatch(path.name)]
    return sorted(names, key=lambda name: tuple(map(int, name.split("."))), reverse=True)


def build_versions(folder: Path, releases: list[str]) -> list[dict[str, Any]]:
    """Build the list that the selector reads."""
    listed = [
        {"version": name, "title": name, "aliases": [LATEST] if name == releases[0] else []}
        for name in releases
    ]
    if (folder / DEVELOPMENT).is_dir():
        listed.append({"version": DEVELOPMENT, "title": DEVELOPMENT, "aliases": []})
    return listed


def main() -> int:
    """Publish the site, and return 2 for a wrong command line."""
    words = [word for word in sys.argv[1:] if word != "--release"]
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        publish_site(Path(words[0]), Path(words[1]), is_release="--release" in sys.argv)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
