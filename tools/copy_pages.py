"""Collect the pages of the documentation site in one folder: docs/ and the pages of the root.

Usage: python tools/copy_pages.py FOLDER
"""

import os.path
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tools.split_reference import find_anchors, split_reference  # noqa: E402

REFERENCE = "docs/reference.md"
# pages of the repository that are not in docs/, and their names on the site
MOVED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    # the order of the site's navigation takes its place
    "docs/README.md": "index.md",
}
LINK = re.compile(r"\[([^\]\n]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def find_pages() -> dict[str, str]:
    """Return the path on the site of each page, picture, script and style of the repository."""
    pages = {}
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in (".md", ".png", ".svg", ".js", ".css"):
            name = path.relative_to(ROOT).as_posix()
            pages[name] = name.removeprefix("docs/")
    return pages | MOVED


def split_long_page() -> dict[str, str]:
    """Return the pages of the reference by their names on the site."""
    return split_reference((ROOT / REFERENCE).read_text(encoding="utf-8"))


def rewrite_links(
    text: str, source: str, pages: dict[str, str], anchors: dict[str, str] | None = None
) -> str:
    """Point links at pages of the site; a link to another file becomes its text.

    Args:
        text: The page.
        source: Its path in the repository.
        pages: The name on the site of each page of the repository.
        anchors: The name on the site of the page that has a heading of the reference.
    """

    def rewrite(link: re.Match[str]) -> str:
        title, file, anchor = link.group(1), link.group(2), link.group(3) or ""
        target = os.path.normpath(PurePosixPath(source).parent / file)
        if target not in pages:
            return title
        here = PurePosixPath(pages[source]).parent
        name = pages[target]
        if target == REFERENCE and anchors:
            name = anchors.get(anchor.removeprefix("#"), name)
        return f"[{title}]({os.path.relpath(name, here)}{anchor})"

    return LINK.sub(rewrite, text)


def copy_pages(folder: Path) -> None:
    """Write the pages of the site into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = find_pages()
    reference = split_long_page()
    anchors = find_anchors(reference)
    for name, text in reference.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for source, name in pages.items():
        if source in ("docs/README.md", REFERENCE):
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            text = (ROOT / source).read_text(encoding="utf-8")
            target.write_text(rewrite_links(text, source, pages, anchors), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / source, target)


if __name__ == "__main__":
    copy_pages(Path(sys.argv[1]))
