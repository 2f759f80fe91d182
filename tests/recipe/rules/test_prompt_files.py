"""Files of prompts are read before a run: their last line too, and files without a prompt."""

import json
from pathlib import Path

import pytest
import yaml

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file
from titanrun.recipe.rules.prompt_files import MAX_CHECKED
from titanrun.rl.prompts.config import QuestionsConfig
from titanrun.rl.prompts.spec.prompt_records import iter_jsonl_prompts

GOOD = json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n"


def find_data_problems(folder: Path, text: str, level: str = "environment") -> list[Problem]:
    """Return the problems of data in a recipe whose prompts are this text."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text(text)
    recipe = {
        "version": 1,
        "kind": "rl",
        "model": {"name": "llama3", "flavor": "debugmodel", "max_seq_len": 512},
        "tokenizer": "characters",
        "training": {"dataset": {"name": "questions", "path": str(prompts)}, "seq_len": 64},
        "rl": {"rewards": ["exact_match"], "sampling": {"max_new_tokens": 8}},
    }
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(recipe))
    found = validate_file(str(file), [], level=level, environment={}).problems
    return [problem for problem in found if problem.code == "data"]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_prompts_is_a_problem(text: str, tmp_path: Path) -> None:
    (problem,) = find_data_problems(tmp_path, text)
    assert problem.message.endswith("has no prompts")


def test_a_cut_last_line_is_found_behind_all_that_is_checked(tmp_path: Path) -> None:
    text = GOOD * (MAX_CHECKED + 10)
    assert find_data_problems(tmp_path, text) == []
    (problem,) = find_data_problems(tmp_path, text + GOOD[:10])
    assert problem.rule == "prompts-can-be-read"


def test_files_are_not_read_at_lower_levels(tmp_path: Path) -> None:
    assert find_data_problems(tmp_path, "{", level="rules") == []
    (problem,) = find_data_problems(tmp_path, "{")
    assert "line 1" in problem.message


@pytest.mark.parametrize("after", [[], [{"role": "assistant", "content": "2"}]])
def test_a_prompt_may_be_the_first_message_of_the_user(
    tmp_path: Path, after: list[dict[str, str]]
) -> None:
    prompt = [{"role": "user", "content": "1+1="}, *after]
    assert find_data_problems(tmp_path, json.dumps({"prompt": prompt, "answer": "2"})) == []
    config = QuestionsConfig(name="questions", path=str(tmp_path / "prompts.jsonl"))
    assert list(iter_jsonl_prompts(config)) == [("1+1=", "2")]


@pytest.mark.parametrize(
    ("record", "message", "hint"),
    [
        (
            {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1"}]},
            "has messages in 'prompt' that do not begin with one text of the user",
            "begin each record with one message of the user, or write its text alone",
        ),
        (
            {"prompt": "1+1=", "answer": 2},
            "has a number in 'answer', not text",
            "write it as a text in quotes; or set answer_column to null",
        ),
        ({"prompt": "1+1=", "result": "2"}, "has no text in 'answer'", "answer_column: result"),
    ],
)
def test_a_record_without_texts_is_told_by_what_it_has(
    record: dict[str, object], message: str, hint: str, tmp_path: Path
) -> None:
    (problem,) = find_data_problems(tmp_path, json.dumps(record))
    assert message in problem.message
    assert hint in (problem.hint or "")
