"""A release is refused while addresses are placeholders or the files name another version."""

import shutil
from pathlib import Path

import pytest

from titanrun.config.version import VERSION
from tools.check_release import PAGES_WITH_ADDRESSES, ROOT, URLS, find_obstacles

PROJECTS = ("pyproject.toml", "packages/titanrun/pyproject.toml")
FILES = (*PROJECTS, *PAGES_WITH_ADDRESSES, "titanrun/config/version.py", "CHANGELOG.md")


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A copy of the checked files, made ready for a release."""
    for name in (*FILES, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in PAGES_WITH_ADDRESSES:
        page = tmp_path / name
        page.write_text(page.read_text().replace("OWNER", "moon"))
    urls = "".join(f'{name} = "https://titanrun.dev/{name}"\n' for name in URLS)
    for name in PROJECTS:
        with (tmp_path / name).open("a") as file:
            file.write(f"\n[project.urls]\n{urls}")
    with (tmp_path / "CHANGELOG.md").open("a") as file:
        file.write(f"\n## [{VERSION}] - 2026-12-01\n")
    (tmp_path / "README.md").write_text("# titanrun\n\n[guide](https://titanrun.dev)\n")
    return tmp_path


def test_a_clone_that_is_ready_has_no_obstacles(ready: Path) -> None:
    assert list(find_obstacles(ready, VERSION)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("pyproject.toml", "https://titanrun.dev/Source", "https://example.org/x", "for Source"),
        ("packages/titanrun/pyproject.toml", 'Issues = "', 'Bugs = "', "lacks Issues"),
        (".github/CODEOWNERS", "@moon", "@OWNER", "CODEOWNERS:2: still has a placeholder"),
        ("titanrun/config/version.py", VERSION, "9.9.9", f"is not {VERSION}"),
        ("CHANGELOG.md", f"[{VERSION}] - 2026-12-01", f"[{VERSION}] - soon", "no dated section"),
        (
            "README.md",
            "https://titanrun.dev",
            "docs/README.md",
            "its 1 relative links, such as docs/README.md",
        ),
        ("README.md", "# titanrun", "0.1, not released", "says that titanrun is not released"),
    ],
)
def test_each_obstacle_is_reported(
    file: str, old: str, new: str, message: str, ready: Path
) -> None:
    changed = ready / file
    assert old in changed.read_text()
    changed.write_text(changed.read_text().replace(old, new))
    obstacles = list(find_obstacles(ready, VERSION))
    assert obstacles and message in obstacles[0]
