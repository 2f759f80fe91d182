"""Split the recipe reference, one long page in docs/, into a page per section for the site.

A section within another one, such as `rl.rollout`, stays on the page of the outer one.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

HEADING = re.compile(r"^(#{1,6}) (.+)$")
FENCE = "```"
INTRODUCTION = "The recipe"
# a choice of a slot, such as model:llama3. It may follow the section of another slot
CHOICE = re.compile(r"`([\w.]+):[^`]+`")
# the description of a setting
SETTING = re.compile(r"^- (`\w+`): (.+)$")
# a rule, and the section that lists them
RULE, RULES = re.compile(r"### `([\w-]+)`"), "Rules"
# the page that the introduction of the reference becomes, and the folder of the others
INDEX, FOLDER = "reference.md", "reference"


@dataclass
class Section:
    """A part of the reference below one heading of the second level."""

    title: str
    lines: list[str]

    @property
    def group(self) -> str:
        """The name of the section, or of the one that it belongs to."""
        return self.title.strip("`").partition(".")[0]

    @property
    def page(self) -> str:
        """The path of its page on the site."""
        return f"{FOLDER}/{self.group.lower().replace(' ', '_')}.md"

    @property
    def summary(self) -> str:
        """Its first sentence, if it begins with one."""
        line = next((line for line in self.lines if line.strip()), "")
        return "" if line.startswith(("#", "-", "|")) else line


def split_reference(text: str) -> dict[str, str]:
    """Return the pages of the reference by their paths on the site."""
    introduction, sections = find_sections(text)
    pages: dict[str, list[str]] = {}
    listed = ["## Sections", ""]
    for section in sections:
        if section.title == INTRODUCTION:
            introduction += [f"## {section.title}", *section.lines]
            continue
        is_first = section.page not in pages
        if section.title == RULES:
            section.lines = list_rules(section.lines)
        lines = pages.setdefault(section.page, [])
        lines += [
            f"{'#' if is_first else '##'} {section.title}",
            *raise_headings(section, is_first),
        ]
        if is_first:
            name = PurePosixPath(section.page)
            listed.append(f"- [{section.title}]({name}): {section.summary}".rstrip(": "))
    listed.append("")
    pages[INDEX] = [*introduction, *listed]
    return {page: "\n".join(lines).rstrip() + "\n" for page, lines in pages.items()}


def find_sections(text: str) -> tuple[list[str], list[Section]]:
    """Return the lines before the first section, and the sections."""
    introduction: list[str] = []
    sections: dict[str, Section] = {}
    current = introduction
    for line, is_code in mark_code(text):
        found = None if is_code else HEADING.match(line)
        if found and len(found[1]) == 2:
            section = sections[found[2]] = Section(found[2], [])
            current = section.lines
            continue
        choice = CHOICE.fullmatch(found[2]) if found else None
        if choice:
            current = sections[f"`{choice[1]}`"].lines
        current.append(line)
    return introduction, list(sections.values())


def mark_code(text: str) -> list[tuple[str, bool]]:
    """Return each line, and whether it is in a fenced block."""
    marked, is_code = [], False
    for line in text.splitlines():
        is_fence = line.startswith(FENCE)
        marked.append((line, is_code or is_fence))
        is_code ^= is_fence
    return marked


def list_rules(lines: list[str]) -> list[str]:
    """Return the rules as a list whose entries have anchors.

    As sections of their own, they would crowd other pages out of the results of the search.
    """
    listed: list[str] = []
    for line in lines:
        rule = RULE.fullmatch(line)
        if rule:
            listed += [f"- `{rule[1]}`{{: #{rule[1]} }}:"]
        elif listed and listed[-1].endswith("}:"):
            listed[-1] += f" {line}" if line else ""
        elif line or not listed or not listed[-1].startswith("- "):
            listed.append(line)
    return listed


def raise_headings(section: Section, is_first: bool) -> list[str]:
    """Return the lines of a section for its page.

    The headings of the first section of a page move up by one level. The settings of a section that
    is no choice get headings, so that the search finds them and links lead to them.
    """
    raised, is_choice = [], False
    for line, is_code in mark_code("\n".join(section.lines)):
        if not is_code and HEADING.match(line):
            is_choice = True
            raised.append(line[1:] if is_first else line)
        elif not is_choice and not is_code and (found := SETTING.match(line)):
            raised += [f"{'##' if is_first else '###'} {found[1]}", "", found[2], ""]
        else:
            raised.append(line)
    return raised


def find_anchors(pages: dict[str, str]) -> dict[str, str]:
    """Return the page of each heading by its anchor; titles come before headings below them."""
    headings = [
        (len(found[1]), page, found[2])
        for page, text in pages.items()
        for line, is_code in mark_code(text)
        if not is_code and (found := HEADING.match(line))
    ]
    anchors: dict[str, str] = {}
    for _, page, title in sorted(headings, key=lambda heading: heading[0]):
        words = re.sub(r"[^\w\s-]", "", title).strip().lower()
        anchors.setdefault(re.sub(r"[-\s]+", "-", words), page)
    return anchors
