"""Shell blocks of the documentation: each runs in a test, or its page is in blocks.yaml;
the commands and options of all of them exist."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.docs.test_site import PAGES_THAT_RUN, TUTORIALS
from titanrun.cli.main import COMMANDS, run

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(
    r"^(?:\$ )?(?:\S+/)?(titanrun|make|python3?|pip|docker|torchrun|rattler-build)\s", re.MULTILINE
)
# the first two have tests of their own: test_readme.py and tests/plugins/test_model_family_page.py
TESTED = {ROOT / "README.md", ROOT / "docs" / "model_family.md", *TUTORIALS, *PAGES_THAT_RUN}
LISTED: dict[str, object] = YAML(typ="safe").load(Path(__file__).with_name("blocks.yaml"))
WITH_SUBCOMMANDS = ("checkpoint", "data", "runs", "schema")


def has_shell_blocks(page: Path) -> bool:
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    return any(kind in ("", "sh", "console") and PROGRAM.search(text) for kind, text in blocks)


def find_commands(page: Path) -> list[list[str]]:
    """The command lines of a page, without comments."""
    found = []
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind not in ("", "sh", "console"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            if match := re.match(r" *(?:\$ )?(?:! )?titanrun (.*)", line):
                try:
                    found.append(shlex.split(match[1], comments=True))
                except ValueError:  # a quoted text that goes on in the next line
                    continue
    return found


def test_every_page_with_shell_blocks_runs_or_is_listed() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES if has_shell_blocks(page)}
    # the examples of commands come from their own help; tests/cli/test_every_command.py holds them
    names = {name for name in names if not name.startswith("docs/commands/")}
    tested = {page.relative_to(ROOT).as_posix() for page in TESTED}
    assert names - tested == set(LISTED)


@pytest.fixture(scope="module")
def get_help() -> Callable[[tuple[str, ...]], str]:
    """The help of a command, kept."""
    import contextlib
    import io

    texts: dict[tuple[str, ...], str] = {}

    def read(words: tuple[str, ...]) -> str:
        if words not in texts:
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                run([*words, "--help"])
            texts[words] = output.getvalue()
        return texts[words]

    return read


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if find_commands(page)],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_commands_and_options_exist(page: Path, get_help: Callable[[tuple[str, ...]], str]) -> None:
    unknown = []
    for words in find_commands(page):
        if not words or words[0].startswith("-"):
            continue
        command = words[0]
        if command not in COMMANDS:
            unknown.append(command)
            continue
        named = tuple(words[:2] if command in WITH_SUBCOMMANDS and len(words) > 1 else words[:1])
        text = get_help(named) + get_help((command,))
        known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
        for word in words[1:]:
            option = word.partition("=")[0]
            if re.fullmatch(r"--?[a-zA-Z][\w-]*", option) and option not in known:
                unknown.append(f"{' '.join(named)} {option}")
    assert unknown == []
