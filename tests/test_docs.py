"""Links between the pages of the documentation, and names of pages elsewhere, lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def read_headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for file, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        if anchor and target.suffix == ".md":
            assert anchor in read_headings(target), f"{file}#{anchor}"


# a page that a message, a comment or a tool names
NAMED = re.compile(r"(?<![\w/.-])docs/[\w/]+\.md\b")
WITH_NAMES = [
    *(path for folder in ("titanrun", "tools") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / ".github").rglob("*.*ml"),
    *(ROOT / name for name in ("Makefile", "CHANGELOG.md", "AGENTS.md", "docs/status.toml")),
]


def test_pages_that_the_program_and_its_tools_name_exist() -> None:
    named = {
        (name, path.relative_to(ROOT).as_posix())
        for path in WITH_NAMES
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert any(user.startswith("titanrun/") for _, user in named)
    assert sorted(use for use in named if not (ROOT / use[0]).is_file()) == []
