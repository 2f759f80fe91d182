"""CHANGELOG.md has the form of Keep a Changelog 1.1.0."""

import re
from datetime import date
from pathlib import Path

LINES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
GROUPS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
MAX_COLUMNS = 150


def test_sections_are_versions_with_dates_and_groups_that_exist() -> None:
    sections = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]
    assert sections[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\S+)", section) for section in sections[1:]]
    dates = [date.fromisoformat(found[1]) for found in released if found]
    assert len(dates) == len(released)
    assert dates == sorted(dates, reverse=True)
    assert {line.removeprefix("### ") for line in LINES if line.startswith("### ")} <= GROUPS


def test_every_entry_is_in_a_group() -> None:
    seen_group = False
    for line in LINES:
        if line.startswith("## "):
            seen_group = False
        seen_group = seen_group or line.startswith("### ")
        assert seen_group or not line.startswith("- "), line
        assert len(line) <= MAX_COLUMNS, line
