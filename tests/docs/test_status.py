"""docs/status.md: every claim has a test and a page, and the page is fresh."""

import re
from pathlib import Path

import pytest

from tools.write_status import ROOT, TARGET, build_page, load_capabilities

ENTRY = """[[capability]]
area = "Data"
capability = "a thing"
state = "works"
proved_on = "CPU"
page = "docs/data.md"
test = ["tests/docs/test_status.py"]
"""


def test_pages_and_tests_exist_and_the_page_is_fresh() -> None:
    assert TARGET.read_text(encoding="utf-8") == build_page(load_capabilities())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("docs/data.md", "docs/gone.md", "no such file: docs/gone.md"),
        ("test_status.py", "test_gone.py", "no such file: tests/docs/test_gone.py"),
        ('"works"', '"nearly works"', "unknown state"),
        ('["tests/docs/test_status.py"]', "[]", "has no test"),
        ('proved_on = "CPU"\n', "", "keys differ: ['proved_on']"),
    ],
)
def test_claims_without_evidence_are_rejected(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    source = tmp_path / "status.toml"
    source.write_text(ENTRY.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        load_capabilities(source)


def test_every_command_is_in_the_table() -> None:
    table = TARGET.read_text(encoding="utf-8")
    commands = {page.stem for page in (ROOT / "docs" / "commands").glob("*.md")}
    assert {name for name in commands if not re.search(rf"\b{name}\b", table)} == set()
