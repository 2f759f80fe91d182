"""Examination of a text parses each of its files once, and sees what changes afterwards."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from titanrun.config import read_source
from titanrun.recipe.editing.examiner import Examiner

STAGES = """version: 1
extends: base.yaml
stages:
- {id: first, training: {steps: 2}}
- {id: second, training: {steps: 3}}
"""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was parsed, by its name."""
    counts: Counter[str] = Counter()
    parse = read_source.read_source_text

    def count(source: Any, source_format: Any) -> Any:
        counts[Path(source.name).name] += 1
        return parse(source, source_format)

    monkeypatch.setattr(read_source, "read_source_text", count)
    return counts


@pytest.mark.parametrize("mistake", ["", "optimizer: {lr: fast}\n"])
def test_each_file_is_parsed_once(tmp_path: Path, parsed: Counter[str], mistake: str) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("version: 1\nextends: shipped:llama3_debug.yaml\n")
    file = str(tmp_path / "mine.yaml")
    examiner = Examiner({})
    for round_ in (1, 2):
        problems = examiner.examine(examiner.open(file, STAGES + mistake))
        assert ("wrong-type" in {one.code for one in problems}) == bool(mistake)
        assert parsed["mine.yaml"] == parsed["base.yaml"] == parsed["fp32.yaml"] == round_
    # what changes on the disk between two examinations counts
    base.write_text("version: 1\nextends: shipped:llama3_debug.yaml\noptimizer: {lrr: 1}\n")
    assert "unknown-key" in {one.code for one in examiner.examine(examiner.documents[file])}
    examiner.close(file)
