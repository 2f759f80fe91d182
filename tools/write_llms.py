"""Write the pages of the built site as text for language models.

llms.txt lists all pages, llms-full.txt holds tutorials and guides, and each page is copied beside
its HTML.

Usage: python tools/write_llms.py PAGES SITE
"""

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
SUMMARY = (
    "titanrun trains language models with PyTorch from YAML or TOML recipes: pretraining, "
    "fine-tuning and reinforcement learning, on one process or many. Recipes are validated "
    "completely, with file, line and column of each mistake, before anything starts."
)
# sections whose pages are read as a whole; the reference is looked up
FULL_SECTIONS = ("Home", "Tutorials", "How-to guides", "Explanation")
OPTIONAL_PAGES = "commands/"
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


@dataclass(frozen=True)
class Page:
    """A page of the navigation."""

    section: str
    file: str
    title: str
    description: str


def find_pages(navigation: Any, folder: Path, section: str = "") -> Iterator[Page]:
    """Yield the pages in the order of the navigation."""
    if isinstance(navigation, str):
        text = (folder / navigation).read_text(encoding="utf-8")
        yield Page(section, navigation, get_title(text), get_description(text))
        return
    for item in navigation:
        entries = item.items() if isinstance(item, dict) else [("", item)]
        for name, below in entries:
            yield from find_pages(below, folder, section or name)


def get_title(text: str) -> str:
    """Return the title of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found is not None, "each page has a title"
    return found[1].replace("`", "")


def get_description(text: str) -> str:
    """Return the first sentence below the title."""
    body = FENCE.sub("", text).partition("\n# " if not text.startswith("# ") else "# ")[2]
    for paragraph in body.partition("\n")[2].split("\n\n"):
        if paragraph.strip() and paragraph.strip()[0] not in "#|!<>-":
            words = LINK.sub(r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=\.)\s", words)[0].rstrip(":.")
    return ""


def build_index(pages: list[Page]) -> str:
    """Build llms.txt."""
    lines = ["# titanrun", "", f"> {SUMMARY}", ""]
    optional = [page for page in pages if page.file.startswith(OPTIONAL_PAGES)]
    for section in dict.fromkeys(page.section for page in pages):
        lines += [f"## {section}", ""]
        lines += [
            format_entry(page) for page in pages if page.section == section and page not in optional
        ]
        lines.append("")
    return "\n".join([*lines, "## Optional", "", *map(format_entry, optional), ""])


def format_entry(page: Page) -> str:
    """Format one page of the list."""
    return f"- [{page.title}]({page.file})" + (f": {page.description}" if page.description else "")


def main() -> None:
    """Write the files into the site."""
    folder, site = map(Path, sys.argv[1:])
    navigation = YAML(typ="safe").load(ROOT / "mkdocs.yml")["nav"]
    pages = list(find_pages(navigation, folder))
    (site / "llms.txt").write_text(build_index(pages), encoding="utf-8")
    texts = [
        (folder / page.file).read_text(encoding="utf-8")
        for page in pages
        if page.section in FULL_SECTIONS
    ]
    (site / "llms-full.txt").write_text("\n\n".join(texts), encoding="utf-8")
    for page in pages:
        shutil.copyfile(folder / page.file, site / page.file)


if __name__ == "__main__":
    main()
