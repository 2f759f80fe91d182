"""What a tokenizer's files say by themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from titanrun.components.tokenizers.spec.tokenizer_files import (
    get_vocab_size,
    open_tokenizer_folder,
)
from titanrun.config.problems import Problem, ProblemsFound


def problem_of(folder: Path) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        get_vocab_size(folder)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.path == ("path",) and problem.hint
    return problem


def write(folder: Path, name: str, data: object) -> None:
    (folder / name).write_text(json.dumps(data))


def test_the_size_is_one_more_than_the_highest_id(tmp_path: Path) -> None:
    write(
        tmp_path,
        "tokenizer.json",
        {"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": [{"content": "<s>", "id": 40}]},
    )
    assert get_vocab_size(tmp_path) == 41
    write(
        tmp_path,
        "tokenizer_config.json",
        {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": {"content": "</s>"},
            "unk_token": None,
        },
    )
    assert get_vocab_size(tmp_path) == 42


def test_a_unigram_model_is_counted(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert get_vocab_size(tmp_path) == 4


def test_vocabulary_and_merges_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "vocab.json", {"a": 0, "b": 1})
    (tmp_path / "merges.txt").write_text("")
    write(
        tmp_path,
        "tokenizer_config.json",
        {
            "added_tokens_decoder": {"2": {"content": "<s>"}, "0": {"content": "a"}},
            "bos_token": "<s>",
        },
    )
    assert get_vocab_size(tmp_path) == 3
    assert open_tokenizer_folder(tmp_path).special_tokens == {"bos_token": "<s>"}


def test_a_folder_without_a_tokenizer_lists_what_it_holds(tmp_path: Path) -> None:
    assert "folder not found" in problem_of(tmp_path / "absent").message
    assert problem_of(tmp_path).message.endswith("holds no tokenizer; found: nothing")
    write(tmp_path, "vocab.json", {"a": 0})
    (tmp_path / "tokenizer.model").touch()
    assert problem_of(tmp_path).message.endswith(
        "holds no tokenizer; found: tokenizer.model, vocab.json"
    )
    assert "save_pretrained" in (problem_of(tmp_path).hint or "")
    for number in range(20):
        (tmp_path / f"shard-{number:02}").touch()
    assert problem_of(tmp_path).message.endswith("shard-11 and 10 more")
    assert "is a file, not a folder" in problem_of(tmp_path / "vocab.json").message


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{\n"model": ')
    assert (
        problem_of(tmp_path).message
        == f"'{tmp_path / 'tokenizer.json'}' is not JSON at line 2 column 10"
    )
    write(tmp_path, "tokenizer.json", {"model": None})
    assert "holds no vocabulary" in problem_of(tmp_path).message
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in problem_of(tmp_path).message
    write(tmp_path, "tokenizer.json", {"model": {"vocab": {"a": 0}}})
    write(tmp_path, "tokenizer_config.json", [])
    assert "tokenizer_config.json' is not a JSON object" in problem_of(tmp_path).message


def test_reading_imports_no_library() -> None:
    program = """
import sys
import titanrun.components.tokenizers.spec.tokenizer_files
print([name for name in ("torch", "numpy", "tokenizers", "transformers") if name in sys.modules])
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
