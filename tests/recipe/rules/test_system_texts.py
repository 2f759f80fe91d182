"""System texts and earlier turns that no setting reads are told before a run."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file

ASKED, REPLY = {"role": "user", "content": "Say moon"}, {"role": "assistant", "content": "moon"}
CHAT: dict[str, Any] = {"messages": [ASKED, REPLY]}
ALPACA = {"instruction": "Say", "input": "moon", "output": "moon"}
BRIEF = {"system": "Be brief."}


def find_warnings(
    folder: Path, records: list[dict[str, Any]], more: str = "", *, packed: bool = False
) -> list[Problem]:
    file = folder / ("rows.parquet" if packed else "rows.jsonl")
    if packed:
        pq.write_table(pa.Table.from_pylist(records), file)
    else:
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "mine.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        "tokenizer: {name: tiny, chat_template: alpaca}\n"
        f"training: {{dataset: {{name: chat, path: {file}{more}}}, seq_len: 64}}\n"
    )
    found = validate_file(str(folder / "mine.yaml"), [], level="environment", environment={})
    rules = ("system-texts-are-read", "system-column-is-there")
    return [one for one in found.problems if one.rule in rules]


@pytest.mark.parametrize("packed", [False, True])
def test_a_system_text_beside_the_messages_is_told_with_its_setting(
    packed: bool, tmp_path: Path
) -> None:
    (told,) = find_warnings(tmp_path, [{**CHAT, **BRIEF}, {**CHAT, "system": ""}], packed=packed)
    assert told.severity == "warning"
    assert told.message.startswith("1 of 2 records of ")
    assert told.message.endswith(" has a system text in 'system', which no setting reads")
    assert told.hint is not None and "training.dataset.system_column: system" in told.hint


@pytest.mark.parametrize(
    ("record", "more"),
    [
        ({**CHAT, **BRIEF}, ", system_column: system"),
        ({**CHAT, **BRIEF}, ", system_column: null"),
        ({**CHAT, "system": None}, ""),
        ({**CHAT, "system": {"id": 3}}, ""),
        ({"messages": [{"role": "system", "content": "Be brief."}, ASKED, REPLY], **BRIEF}, ""),
        ({"system": "Say", "completion": "moon"}, ", layout: prompt_completion, prompt_column: s"),
        ({**ALPACA, "history": []}, ", layout: alpaca"),
        ({**CHAT, "history": [["a", "b"]]}, ""),
    ],
)
def test_what_is_read_or_empty_or_left_out_on_purpose_is_not_told(
    record: dict[str, Any], more: str, tmp_path: Path
) -> None:
    more = more.replace("prompt_column: s", "prompt_column: system")
    assert find_warnings(tmp_path, [record], more) == []


def test_system_prompts_are_known_by_that_name(tmp_path: Path) -> None:
    (told,) = find_warnings(tmp_path, [{**CHAT, "system_prompt": "Be brief."}])
    assert told.hint is not None and "training.dataset.system_column: system_prompt" in told.hint


def test_earlier_turns_of_alpaca_are_told(tmp_path: Path) -> None:
    record = {**ALPACA, "history": [["Say sun", "sun"]]}
    (told,) = find_warnings(tmp_path, [record, ALPACA], ", layout: alpaca")
    assert told.message.endswith(" has earlier turns in 'history', which no setting reads")
    assert told.hint is not None and "messages" in told.hint


def test_of_a_large_file_the_first_records_are_read(tmp_path: Path) -> None:
    long = {**CHAT, "system": "brief " * 2500}
    (told,) = find_warnings(tmp_path, [long] * 120)
    assert told.message.startswith("100 of the first 100 records of ")


def test_a_misspelled_column_is_told(tmp_path: Path) -> None:
    (told,) = find_warnings(tmp_path, [{**CHAT, **BRIEF}, CHAT], ", system_column: sytem")
    assert told.severity == "error"
    assert told.message.startswith("no 'sytem' in 2 records of ")
    assert told.hint == "did you mean 'system'?"
    assert find_warnings(tmp_path, [CHAT, {**CHAT, **BRIEF}], ", system_column: system") == []


def test_a_column_that_a_large_file_may_have_later_is_a_warning(tmp_path: Path) -> None:
    long = {"messages": [ASKED, {**REPLY, "content": "moon " * 2500}]}
    (told,) = find_warnings(tmp_path, [long] * 120, ", system_column: system")
    assert (told.severity, told.message[:18]) == ("warning", "no 'system' in the")


@pytest.mark.parametrize(
    "record",
    [{**CHAT, **BRIEF, "system_prompt": "Be kind."}, {**CHAT, "system_prompt": "Be kind."}],
)
def test_texts_in_a_second_column_are_told(record: dict[str, Any], tmp_path: Path) -> None:
    records = [{**CHAT, **BRIEF, "system_prompt": BRIEF["system"]}, record]
    (told,) = find_warnings(tmp_path, records, ", system_column: system")
    assert told.severity == "warning"
    assert told.message.startswith("1 of 2 records of ")
    assert told.message.endswith(" has a system text in 'system_prompt', which no setting reads")
    assert told.hint == "one column of system texts is read, 'system': write these texts there"
