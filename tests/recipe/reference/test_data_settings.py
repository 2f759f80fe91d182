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

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.data_settings import (
    build_data_settings,
    build_hub_settings,
    suggest_columns,
    suggest_for_text_files,
)
from titanrun.recipe.reference.record_words import describe_records

TURN = {"role": "user", "content": "Say moon"}
SHARED = {"from": "human", "value": "Say moon"}


PAIR = {"prompt_column": "question", "completion_column": "answer"}
WHOLE_CHATS = {"chosen": [TURN], "rejected": [TURN]}


def build(dataset: str, path: Path) -> dict[str, Any]:
    """Return what is guessed beside name and path."""
    found, _ = build_data_settings(dataset, str(path))
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
        ("chat", {"prompt": [TURN], "completion": [TURN]}, {"layout": "prompt_completion"}),
        ("chat", {"messages": [TURN], "system": "brief"}, {"system_column": "system"}),
        ("chat", {"messages": [TURN], "system_prompt": ""}, {"system_column": "system_prompt"}),
        (
            "chat",
            {"conversations": [SHARED], "System": "brief"},
            {"layout": "sharegpt", "system_column": "System"},
        ),
        (
            "chat",
            {"instruction": "Say", "input": "", "output": "moon", "system": "", "history": []},
            {"layout": "alpaca", "system_column": "system"},
        ),
        (
            "chat",
            {"system": "brief", "frage": "Say", "antwort": "moon"},
            {
                "layout": "prompt_completion",
                "prompt_column": "frage",
                "completion_column": "antwort",
                "system_column": "system",
            },
        ),
        (
            "chat",
            {"question": "Say", "answer": "moon"},
            {"layout": "prompt_completion", **PAIR},
        ),
        ("preference", {"prompt": "Say", "chosen": "moon", "rejected": "sun"}, {}),
        (
            "preference",
            {"prompt": "Say moon", "accepted": "moon", "rejected": "sun"},
            {"chosen_column": "accepted"},
        ),
        ("preference", WHOLE_CHATS, {}),
        ("preference", {"id": 1, "messages": "a text", **WHOLE_CHATS}, {}),
        (
            "preference",
            {"conversations": [SHARED], "chosen": SHARED, "rejected": SHARED},
            {"prompt_column": "conversations"},
        ),
        (
            "preference",
            {"Question": "Say", "better": "moon", "worse": "sun"},
            {"prompt_column": "Question", "chosen_column": "better", "rejected_column": "worse"},
        ),
        (
            "preference",
            {"system": "", "prompt": "Say", "chosen": "moon", "rejected": "sun"},
            {"system_column": "system"},
        ),
        (
            "labelled",
            {"prompt": "Say", "completion": "moon", "label": True, "System": "brief"},
            {"system_column": "System"},
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
    found, guess = build_data_settings("chat", str(file))
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
        ("chat", "a.jsonl", '{"text": "moon"}', "text", "these are plain texts: --kind pretrain"),
        ("text", "a.jsonl", '{"a": "x", "b": "y"}', "a, b", "the column of texts"),
        (
            "text",
            "a.csv",
            "prompt,chosen,rejected\nx,y,z\n",
            "prompt, chosen, rejected",
            "--kind dpo",
        ),
        (
            "chat",
            "a.csv",
            "a,b,c\nx,y,z\n",
            "a, b, c",
            "name two of them in the recipe, by layout: prompt_completion",
        ),
        ("chat", "a.csv", "prompt;completion\nSay;moon\n", "prompt;completion", "by commas"),
        ("chat", "a.csv", 'messages\n"[{}]"\n', "messages", "csv holds no lists of messages"),
        ("preference", "a.csv", "prompt,text\nx,y\n", "prompt, text", "chosen and rejected"),
        ("preference", "a.csv", "chosen,rejected\nx,y\n", "chosen, rejected", "name them prompt"),
        (
            "chat",
            "a.jsonl",
            '{"prompt": "a", "chosen": "b", "rejected": "c"}',
            "prompt, chosen, rejected",
            "these are pairs: --kind dpo",
        ),
        (
            "chat",
            "a.jsonl",
            '{"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"}',
            "prompt, chosen, rejected",
            "these are pairs: --kind dpo",
        ),
        (
            "preference",
            "a.csv",
            "prompt,completion,label\nx,y,true\n",
            "prompt, completion, label",
            "these are labelled replies: --kind kto",
        ),
        (
            "labelled",
            "a.jsonl",
            '{"messages": [{"role": "user", "content": "a"}]}',
            "messages",
            "these are conversations: --kind sft",
        ),
        ("labelled", "a.csv", "prompt,completion\nx,y\n", "prompt, completion", "and label"),
        ("labelled", "a.csv", "completion,label\nx,1\n", "completion, label", "name them prompt"),
    ],
)
def test_columns_that_do_not_suit_are_a_problem(
    dataset: str, name: str, text: str, columns: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        build_data_settings(dataset, str(tmp_path / name))
    (problem,) = caught.value.problems
    meant = "lines of {" if name.endswith("jsonl") else "column"
    assert f"has the columns {columns}, none of which suit {meant}" in problem.message
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


def test_labels_that_conversations_leave_unread_are_told(tmp_path: Path) -> None:
    record = {"prompt": "Say", "completion": "moon", "label": True}
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(record))
    _, guess = build_data_settings("chat", str(file))
    assert "column 'label' is not read" in guess.doubt and "--kind kto" in guess.doubt


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "chat", "path": "a.jsonl"}, 'lines of {"messages": [...]}'),
        ({"name": "chat", "path": "a.parquet", "column": "talk"}, "column talk"),
        ({"name": "labelled", "path": "a.csv"}, "columns prompt, completion and label"),
        (
            {"name": "labelled", "path": "a.jsonl.gz", "prompt_column": "q"},
            'lines of {"q", "completion", "label"}',
        ),
        (
            {"name": "labelled", "repo": "a/b", "from_pairs": True},
            "columns prompt, chosen and rejected",
        ),
    ],
)
def test_records_are_described_as_the_files_hold_them(settings: dict[str, Any], words: str) -> None:
    assert describe_records(settings) == words


def test_a_file_of_plain_texts_is_told_the_kind_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("Say moon")
    with pytest.raises(ProblemsFound) as found:
        build_data_settings("chat", str(tmp_path / "texts.txt"))
    (problem,) = found.value.problems
    # a command line has no path of a recipe
    assert problem.path == ()
    assert problem.message.endswith("texts.txt' is not a .jsonl, .json, .parquet or .csv file")
    assert problem.hint == "these are plain texts: --kind pretrain"


def test_conversations_beside_pairs_are_trained_on(tmp_path: Path) -> None:
    turn = '[{"role": "user", "content": "a"}]'
    text = f'{{"prompt": "a", "chosen": {turn}, "rejected": {turn}, "messages": {turn}}}'
    (tmp_path / "a.jsonl").write_text(text)
    assert build_data_settings("chat", str(tmp_path / "a.jsonl"))[1].settings == {}


def test_a_recipe_with_pairs_as_conversations_is_told_of_their_dataset(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}')
    hint = suggest_columns(ChatDatasetConfig(name="chat", path=str(file)), file)
    assert hint == (
        "these are pairs, which dataset preference reads, with a loss that compares replies: "
        "see titanrun init --kind dpo"
    )


def test_pairs_on_the_hub_are_not_conversations() -> None:
    names = ("prompt", "chosen", "rejected")
    card = {"dataset_info": {"features": [{"name": name, "dtype": "string"} for name in names]}}
    with pytest.raises(ProblemsFound) as caught:
        build_hub_settings("chat", "owner/pairs", revision=None, card=card)
    assert caught.value.problems[0].hint == "these are pairs: --kind dpo"
    build_hub_settings("preference", "owner/pairs", revision=None, card=card)


def test_text_files_are_told_the_command_for_texts(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A text.\n")
    (tmp_path / "chats.jsonl").write_text("{}\n")
    told = suggest_for_text_files(str(tmp_path), "models/small")
    assert told is not None
    assert told.endswith(
        "with kind pretrain: titanrun init --kind pretrain --model models/small "
        f"--data {tmp_path} -o texts.yaml writes that recipe"
    )
    assert suggest_for_text_files(str(tmp_path / "chats.jsonl"), None) is None
