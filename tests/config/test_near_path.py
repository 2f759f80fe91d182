"""A missing file or folder is compared with the names that exist."""

from pathlib import Path

import pytest

from titanrun.config.near_path import (
    expand_braces,
    explain_missing_path,
    find_near_path,
    has_match,
)

FILES = (
    *("data/chats.jsonl", "data/kto.jsonl", "data/part-00001.jsonl"),
    *("runs/one/step-4/a", "runs/one/step-12/a"),
    *("models/mymodel/config.json", "models/Qwen3-8B/config.json", "mymodel.txt"),
)
ENDS = ("a", "b1", "b2")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("named", "near"),
    [
        ("data/chat.jsonl", "data/chats.jsonl"),
        ("dta/chat.jsonl", "data/chats.jsonl"),
        ("data/chats.json", "data/chats.jsonl"),
        ("models/mymodl", "models/mymodel"),
        ("./model/my_model", "models/mymodel"),
        ("models/mymodl/config.json", "models/mymodel/config.json"),
    ],
)
def test_a_near_name_is_found(named: str, near: str) -> None:
    assert find_near_path(named) == near


@pytest.mark.parametrize(
    "named",
    [
        *("data/sft.jsonl", "data/part-00002.jsonl", "models/Qwen3-4B", "nowhere/chats.jsonl"),
        *("data/chat*.jsonl", "https://host/data/chat.jsonl", "data/chats.jsonl", "a\0b"),
    ],
)
def test_other_names_are_not_suggested(named: str) -> None:
    assert find_near_path(named) is None


def test_a_file_is_not_suggested_for_a_folder() -> None:
    assert find_near_path("mymodl.txt") == "mymodel.txt"
    assert find_near_path("mymodl.txt", only_folders=True) is None


def test_an_absolute_path_stays_absolute(tmp_path: Path) -> None:
    assert find_near_path(f"{tmp_path}/dta/chat.jsonl") == f"{tmp_path}/data/chats.jsonl"


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("data/{chats,kt}.jsonl", "there is no 'data/kt.jsonl': did you mean 'data/kto.jsonl'?"),
        ("data/part-{00..15}.jsonl", "there is no 'data/part-00.jsonl': did you mean"),
        ("data/chats.jsonl, data/kto.jsonl", 'write "data/{chats,kto}.jsonl"'),
        ("data/chats.jsonl mymodel.txt", 'write "{data/chats.jsonl,mymodel.txt}"'),
        (
            "$DATA/chats.jsonl",
            'variables of a shell are not expanded: write "${env:DATA}/chats.jsonl"',
        ),
        (r"data\chats.jsonl", "write data/chats.jsonl"),
        ("runs/one/step-500", "'runs/one' has step-4 and step-12"),
        ("~/chats.jsonl", f"~ is not expanded: write {Path.home()}/chats.jsonl"),
    ],
)
def test_what_only_a_shell_expands_is_told(named: str, hint: str) -> None:
    assert explain_missing_path(named).startswith(hint)


def test_only_a_relative_path_is_told_what_it_is_relative_to(tmp_path: Path) -> None:
    assert explain_missing_path("sft.jsonl") == f"paths are relative to {tmp_path}"
    told = explain_missing_path(f"{tmp_path}/data/sft.jsonl")
    assert told == f"'{tmp_path}/data' has no 'sft.jsonl'"


def test_braces_stand_for_every_alternative_unless_a_name_has_them(tmp_path: Path) -> None:
    assert expand_braces("data/part-{08..11}.{a,b{1,2}}") == [
        f"data/part-{number}.{end}" for number in ("08", "09", "10", "11") for end in ENDS
    ]
    assert expand_braces("{title}/{1..999999999}") == ["{title}/{1..999999999}"]
    assert has_match("data/{chats,k*}.jsonl") and not has_match("data/{chats,other}.jsonl")
    (tmp_path / "{a,b}.txt").touch()
    assert expand_braces("{a,b}.txt") == ["{a,b}.txt"]
