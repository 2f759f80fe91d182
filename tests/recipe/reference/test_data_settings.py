"""What `titanrun init` guesses of a dataset from its columns and its card."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.data_settings import build_data_settings, build_hub_settings

TURN = {"role": "user", "content": "Say moon"}
SHARED = {"from": "human", "value": "Say moon"}


PAIR = {"prompt_column": "question", "completion_column": "answer"}
WHOLE_CHATS = {"chosen": [TURN], "rejected": [TURN]}


def build(dataset: str, path: Path) -> dict[str, Any]:
    """Return what is guessed beside name and path."""
    found, _ = build_data_settings(dataset, str(path), record="")
    assert (found.pop("name"), found.pop("path")) == (dataset, str(path))
    return found


@pytest.mark.parametrize(
    ("dataset", "record", "settings"),
    [
        ("chat", {"messages": [TURN]}, {}),
        ("chat", {"id": 1, "talk": [TURN]}, {"column": "talk"}),
        ("chat", {"conversations": [SHARED]}, {"layout": "sharegpt"}),
        ("chat", {"chat": [SHARED]}, {"layout": "sharegpt", "column": "chat"}),
        ("chat", {"instruction": "Say", "input": "", "output": "moon"}, {"layout": "alpaca"}),
        ("chat", {"prompt": "Say", "completion": "moon"}, {"layout": "prompt_completion"}),
        (
            "chat",
            {"question": "Say", "answer": "moon"},
            {"layout": "prompt_completion", **PAIR},
        ),
        ("preference", {"prompt": "Say", "chosen": "moon", "rejected": "sun"}, {}),
        ("preference", WHOLE_CHATS, {}),
        (
            "preference",
            {"Question": "Say", "better": "moon", "worse": "sun"},
            {"prompt_column": "Question", "chosen_column": "better", "rejected_column": "worse"},
        ),
        ("labelled", {"prompt": "Say", "completion": "moon", "label": True}, {}),
        (
            "labelled",
            {"question": "Say", "answer": "moon", "thumbs_up": True},
            {**PAIR, "label_column": "thumbs_up"},
        ),
        ("labelled", WHOLE_CHATS, {"from_pairs": True}),
    ],
)
def test_columns_follow_from_the_first_record_or_the_schema(
    dataset: str, record: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(f"\n{json.dumps(record)}\n", encoding="utf-8")
    assert build(dataset, file) == build(dataset, tmp_path) == settings
    listed = tmp_path / "data.json"
    listed.write_text(json.dumps([record, record], indent=2), encoding="utf-8")
    assert build(dataset, listed) == settings
    packed = tmp_path / "data.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert build(dataset, packed) == settings
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "data.parquet")
    assert build(dataset, tmp_path / "data.parquet") == settings
    if not any(isinstance(value, list) for value in record.values()):
        (tmp_path / "data.csv").write_text(write_csv(record), encoding="utf-8")
        assert build(dataset, tmp_path / "data.csv") == settings


def write_csv(record: dict[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, record)
    writer.writeheader()
    writer.writerow(record)
    return text.getvalue()


@pytest.mark.parametrize(
    ("text", "settings", "doubt"),
    [
        (
            "id,frage,antwort\n1,Sag Mond,Mond\n",
            {"prompt_column": "frage", "completion_column": "antwort"},
            "column 'frage' is taken for the prompt and 'antwort' for the completion, by their "
            "order",
        ),
        (
            "instruction,context,response\nSay,the sky,moon\n",
            {"prompt_column": "instruction", "completion_column": "response"},
            "of the columns these are not read: context",
        ),
        ("prompt,completion\nSay,moon\n", {}, ""),
    ],
)
def test_what_is_not_certain_is_said(
    text: str, settings: dict[str, Any], doubt: str, tmp_path: Path
) -> None:
    file = tmp_path / "data.csv"
    file.write_text(text, encoding="utf-8")
    found, guess = build_data_settings("chat", str(file), record="")
    assert found == {
        "name": "chat",
        "path": str(file),
        "layout": "prompt_completion",
        **settings,
    }
    assert guess.doubt == doubt


@pytest.mark.parametrize(
    ("dataset", "name", "text", "columns", "hint"),
    [
        ("chat", "a.jsonl", '{"text": "moon"}', "text", "plain texts are for kind pretrain"),
        ("chat", "a.csv", "a,b,c\nx,y,z\n", "a, b, c", "name two of them prompt and completion"),
        ("chat", "a.csv", "prompt;completion\nSay;moon\n", "prompt;completion", "by commas"),
        ("chat", "a.csv", 'messages\n"[{}]"\n', "messages", "csv holds no lists of messages"),
        ("preference", "a.csv", "prompt,text\nx,y\n", "prompt, text", "chosen and rejected"),
        ("preference", "a.csv", "chosen,rejected\nx,y\n", "chosen, rejected", "name them prompt"),
        ("labelled", "a.csv", "prompt,completion\nx,y\n", "prompt, completion", "and label"),
        ("labelled", "a.csv", "completion,label\nx,1\n", "completion, label", "name them prompt"),
    ],
)
def test_columns_that_do_not_suit_are_a_problem(
    dataset: str, name: str, text: str, columns: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        build_data_settings(dataset, str(tmp_path / name), record="records of {...}")
    (problem,) = caught.value.problems
    assert f"has the columns {columns}, none of which suit records of {{...}}" in problem.message
    assert hint in (problem.hint or "")


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.csv", "data.parquet"])
@pytest.mark.parametrize("text", ["", "{", "\xff", "[1]"])
def test_a_file_that_cannot_be_read_is_left_to_validate(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    assert build("chat", tmp_path / name) == {}


FEATURES = [
    {"name": "prompt", "dtype": "string"},
    {"name": "talk", "list": [{"name": "role"}, {"name": "content"}]},
]
TWO_SUBSETS = [
    {"config_name": "b", "data_files": [{"split": "test", "path": "b/*"}]},
    {"config_name": "a", "data_files": "a/*"},
]


@pytest.mark.parametrize(
    ("dataset", "card", "settings"),
    [
        ("chat", {}, {}),
        ("chat", {"configs": "damaged", "dataset_info": 3}, {}),
        (
            "chat",
            {
                "dataset_info": {
                    "features": FEATURES,
                    "splits": [{"name": "test_sft"}, {"name": "train_gen"}, {"name": "train_sft"}],
                }
            },
            {"split": "train_sft", "column": "talk"},
        ),
        ("chat", {"dataset_info": {"splits": [{"name": "train_gen"}, {"name": "train"}]}}, {}),
        (
            "preference",
            {"dataset_info": {"splits": [{"name": "train_sft"}, {"name": "train_prefs"}]}},
            {"split": "train_prefs"},
        ),
        ("chat", {"configs": TWO_SUBSETS}, {"subset": "b"}),
        ("chat", {"configs": [*TWO_SUBSETS, {"config_name": "default"}]}, {}),
        (
            "chat",
            {
                "configs": TWO_SUBSETS,
                "dataset_info": [
                    {"config_name": "a", "features": []},
                    {"config_name": "b", "features": FEATURES},
                ],
            },
            {"subset": "b", "column": "talk"},
        ),
    ],
)
def test_a_card_names_subset_split_and_columns(
    dataset: str, card: dict[str, Any], settings: dict[str, Any]
) -> None:
    found = build_hub_settings(dataset, "owner/data", revision=None, card=card)
    assert found == {"name": dataset, "repo": "owner/data", **settings}


def test_a_commit_is_written() -> None:
    found = build_hub_settings("chat", "owner/data", revision="a" * 40, card={})
    assert found == {"name": "chat", "repo": "owner/data", "revision": "a" * 40}
