"""Empty replies are counted before a run."""

import json
from pathlib import Path

import pytest

from titanrun.recipe.resolving.validation_levels import validate_file

ASKED = {"role": "user", "content": "Say moon"}


def count_in(folder: Path, replies: list[dict[str, object]], *, more: str = "") -> list[str]:
    rows = [{"messages": [ASKED, {"role": "assistant", **reply}]} for reply in replies]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\n"
        f"training: {{dataset: {{name: chat, path: {folder}/rows.jsonl{more}}}, seq_len: 64}}\n"
    )
    found = validate_file(str(folder / "mine.yaml"), [], level="environment", environment={})
    return [one.message for one in found.problems if one.rule == "replies-have-text"]


@pytest.mark.parametrize(
    "reply",
    [
        {"content": "moon"},
        {"content": "", "reasoning_content": "The moon."},
        {"content": None, "tool_calls": [{"function": {"name": "say", "arguments": {}}}]},
    ],
)
def test_replies_with_text_reasoning_or_calls_are_not_empty(
    reply: dict[str, object], tmp_path: Path
) -> None:
    assert count_in(tmp_path, [reply]) == []


def test_one_empty_reply_is_told(tmp_path: Path) -> None:
    (told,) = count_in(tmp_path, [{"content": "moon"}, {"content": "\n"}])
    assert told.startswith("1 of 2 conversations of ")
    assert told.endswith(" has an empty reply, which the model would learn")


def test_of_a_large_file_the_first_records_are_counted(tmp_path: Path) -> None:
    long = {"content": "moon " * 2500}
    (told,) = count_in(tmp_path, [{"content": ""}, {"content": ""}, *[long] * 120])
    assert told.startswith("2 of the first 100 conversations of ")


def test_weighted_messages_may_be_empty(tmp_path: Path) -> None:
    assert count_in(tmp_path, [{"content": "", "weight": 0}], more=", turn_weights: weight") == []
