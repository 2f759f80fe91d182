"""Say what keeps the files of this clone from being released.

Usage: python tools/check_release.py X.Y.Z
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
URLS = {"Documentation", "Source", "Issues", "Changelog", "Releases"}
# what stands for an address that the project does not have yet
PLACEHOLDER = re.compile(r"\bOWNER\b|example\.(?:com|org)|\bTODO\b")
PAGES_WITH_ADDRESSES = (".github/CODEOWNERS", "docs/ci.md")


def find_obstacles(root: Path, version: str) -> Iterator[str]:
    """Yield what has to be done before this version can be released, a sentence each."""
    for file in ("pyproject.toml", "packages/titanrun/pyproject.toml"):
        project = tomllib.loads((root / file).read_text(encoding="utf-8"))["project"]
        urls = project.get("urls", {})
        if missing := sorted(URLS - set(urls)):
            yield f"{file}: [project.urls] lacks {', '.join(missing)}"
        for name, url in urls.items():
            if PLACEHOLDER.search(url):
                yield f"{file}: [project.urls] has no real address for {name}: {url}"
    found = (root / "titanrun" / "config" / "version.py").read_text(encoding="utf-8")
    if f'VERSION = "{version}"' not in found:
        yield f"titanrun/config/version.py: is not {version}"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(section, changelog, re.MULTILINE):
        yield f"CHANGELOG.md: has no dated section [{version}]"
    for file in PAGES_WITH_ADDRESSES:
        lines = (root / file).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if PLACEHOLDER.search(line):
                yield f"{file}:{number}: still has a placeholder: {line.strip()}"
    readme = (root / "README.md").read_text(encoding="utf-8")
    if "not released" in readme:
        yield "README.md: says that titanrun is not released"
    links = sorted(set(re.findall(r"\]\((?!\w+:|#)([^)]+)\)", readme)))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if links and "readme" not in project["dynamic"]:
        yield (
            f"README.md: PyPI does not resolve its {len(links)} relative links, such as {links[0]}"
            ": rewrite them with hatch-fancy-pypi-readme"
        )


def main() -> int:
    """Print the obstacles, and return 1 if there are any."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    obstacles = list(find_obstacles(ROOT, sys.argv[1]))
    for obstacle in obstacles:
        print(obstacle, file=sys.stderr)
    return int(bool(obstacles))


if __name__ == "__main__":
    sys.exit(main())
