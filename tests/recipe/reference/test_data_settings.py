"""What `titanrun init` guesses of a dataset from its columns and its card."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.recipe.reference.data_settings import build_data_settings, build_hub_settings

TURN = {"role": "user", "content": "Say moon"}
SHARED = {"from": "human", "value": "Say moon"}


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        ({"messages": [TURN]}, {}),
        ({"id": 1, "talk": [TURN]}, {"column": "talk"}),
        ({"conversations": [SHARED]}, {"layout": "sharegpt"}),
        ({"chat": [SHARED]}, {"layout": "sharegpt", "column": "chat"}),
        ({"instruction": "Say", "input": "", "output": "moon"}, {"layout": "alpaca"}),
        ({"prompt": "Say", "completion": "moon"}, {"layout": "prompt_completion"}),
        (
            {"question": "Say", "answer": "moon"},
            {
                "layout": "prompt_completion",
                "prompt_column": "question",
                "completion_column": "answer",
            },
        ),
        ({"text": "moon"}, {}),
        ([1], {}),
    ],
)
def test_the_layout_follows_from_the_first_record(
    record: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(f"\n{json.dumps(record)}\n", encoding="utf-8")
    for data in (file, tmp_path):
        found = build_data_settings("chat", str(data), record="")
        assert found == {"name": "chat", "path": str(data), **settings}
    listed = tmp_path / "data.json"
    listed.write_text(json.dumps([record, 3], indent=2), encoding="utf-8")
    found = build_data_settings("chat", str(listed), record="")
    assert found == {"name": "chat", "path": str(listed), **settings}
    found = build_data_settings("preference", str(file), record="")
    assert found == {"name": "preference", "path": str(file)}


@pytest.mark.parametrize("text", ["", "{", "\xff"])
def test_a_file_that_cannot_be_read_is_left_to_validate(text: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(text, encoding="latin-1")
    file = str(tmp_path / "data.jsonl")
    assert build_data_settings("chat", file, record="") == {"name": "chat", "path": file}


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
