"""What `titanrun diff-config` prints of values that could be misread."""

import json
from pathlib import Path

import pytest

from titanrun.cli.diff_config import run

START = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny, steps: 5}\n"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n", '"a\\n"'),
        ("a\noptimizer.lr  1 -> 2", '"a\\noptimizer.lr  1 -> 2"'),
        ("1", '"1"'),
        ("null", '"null"'),
        (" a", '" a"'),
        ("no", "no"),
        ("two words: é", "two words: é"),
    ],
)
def test_a_text_is_shown_on_one_line_and_never_as_another_value(
    text: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = tmp_path / "left.yaml", tmp_path / "right.yaml"
    left.write_text(START)
    right.write_text(f"{START}description: {json.dumps(text)}\n")
    assert run([str(left), str(right)]) == 1
    assert capsys.readouterr().out == (
        f"description  '' -> {shown} ({right}:4)  bookkeeping, a resume allows it\n"
    )
