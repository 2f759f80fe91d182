"""Prompts with their answers: made up, or from files."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rl.parts import TEXT, tokenizer
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader import DataloaderExhaustedError
from titanrun.config import registry
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe import builtins
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.rl.prompts.prompt_dataset import PromptDataset
from titanrun.worker.build.build_rollout_source import build_prompt_data
from titanrun.worker.worker_job import rendezvous

BASE: dict[str, dict[str, Any]] = {
    "string_task": {"count": 20},
    "arithmetic": {"count": 20},
    "guess_task": {"count": 20},
    "lookup_task": {"count": 20},
}
OTHERS: dict[str, dict[str, Any]] = {
    "string_task": {
        "count": 21,
        "split": "held_out",
        "operation": "sort",
        "length": 4,
        "alphabet": "xyz",
    },
    "arithmetic": {"count": 21, "split": "held_out", "operation": "digit_sum", "digits": 3},
    "guess_task": {"count": 3, "split": "held_out", "highest": 3},
    "lookup_task": {"count": 21, "split": "held_out", "words": "ab", "digits": 3},
}


def task(name: str, **options: Any) -> PromptDataset:
    builtins.register_builtins()
    config: Any = registry.load_choice(DatasetConfig, name).model_validate(
        {"name": name, **options}
    )
    return config.load_builder()(
        config, tokenizer=tokenizer(), sample_length=33, cache_folder=Path("none")
    )


def asked(name: str, **options: Any) -> list[tuple[str, str]]:
    return list(task(name, **options).prompt_answer_pairs)


def test_every_option_of_a_task_makes_other_questions(tmp_path: Path) -> None:
    for name, others in OTHERS.items():
        for field, value in others.items():
            assert asked(name, **BASE[name]) != asked(name, **{**BASE[name], field: value}), (
                f"{name}.{field}"
            )
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(json.dumps({"prompt": "1", "answer": "2", "q": "3", "a": "4"}))
    second.write_text(json.dumps({"prompt": "5", "answer": "6"}))
    read = {"path": str(first)}
    assert asked("questions", **read) == [("1", "2")]
    assert asked("questions", path=str(second)) == [("5", "6")]
    assert asked("questions", **read, prompt_column="q", answer_column="a") == [("3", "4")]
    assert asked("questions", **read, answer_column=None) == [("1", "")]
    first.write_text(json.dumps({"prompt": "1", "answer": "half of 4 #### 2 "}))
    assert (
        asked("questions", **read, answer_pattern="#### (.*?) *$")
        == asked("questions", **read, answer_pattern="2")
        == [("1", "2")]
    )


def test_the_keys_of_a_record_without_a_prompt_or_an_answer_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "1"}))
    with pytest.raises(ProblemsFound, match="has no text in 'prompt'; it has: question"):
        asked("questions", path=str(path))
    with pytest.raises(ProblemsFound, match="has no text in 'answer'; it has: question") as found:
        asked("questions", path=str(path), prompt_column="question")
    assert "or to null where no reward reads answers" in str(found.value.problems[0].hint)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("#### (.*)", "record 2 of a hub has no match in 'answer'"), ("(", "pattern cannot be read")],
)
def test_an_answer_that_a_pattern_does_not_find_is_named(
    monkeypatch: pytest.MonkeyPatch, pattern: str, message: str
) -> None:
    records = [{"prompt": "1", "answer": "#### 2"}, {"prompt": "3", "answer": "4"}]
    placed = [
        (f"record {number} of a hub", record) for number, record in enumerate(records, start=1)
    ]
    monkeypatch.setattr(
        "titanrun.components.data.hub_records.iter_hub_records", lambda config: iter(placed)
    )
    with pytest.raises(ProblemsFound, match=message) as problems:
        task("hub_questions", repo="a/b", revision="0" * 40, answer_pattern=pattern)
    assert problems.value.problems[0].path == ("answer_pattern",)


@pytest.mark.parametrize(
    ("name", "options", "prompt", "answer"),
    [
        ("string_task", {"operation": "reverse"}, r"[a-j]{3}>", lambda prompt: prompt[-2::-1]),
        ("string_task", {"operation": "copy"}, r"[a-j]{3}>", lambda prompt: prompt[:-1]),
        (
            "string_task",
            {"operation": "sort"},
            r"[a-j]{3}>",
            lambda prompt: "".join(sorted(prompt[:-1])),
        ),
        ("string_task", {"operation": "upper"}, r"[a-j]{3}>", lambda prompt: prompt[:-1].upper()),
        (
            "arithmetic",
            {"operation": "addition"},
            r"\d+\+\d+=",
            lambda prompt: str(sum(map(int, prompt[:-1].split("+")))),
        ),
        (
            "arithmetic",
            {"operation": "digit_sum"},
            r"\d\d:",
            lambda prompt: str(sum(map(int, prompt[:-1]))),
        ),
    ],
)
def test_answers_are_right(name: str, options: dict[str, Any], prompt: str, answer: Any) -> None:
    found = asked(name, **options, count=50)
    assert len(found) == 50 and all(right == answer(question) for question, right in found)


def test_a_word_stands_in_its_dictionary() -> None:
    for prompt, answer in asked("lookup_task", words="xyz", digits=3, count=50):
        entries, _, wanted = answer.partition(";")
        known = dict(entry.split("=") for entry in entries.split(","))
        assert (
            list(known) == ["x", "y", "z"]
            and known[prompt.removesuffix(">")] == wanted
            and len(wanted) == 3
        )


def test_held_out_prompts_are_no_others() -> None:
    train, held_out = (
        set(asked("string_task", count=500)),
        set(asked("string_task", count=100, split="held_out")),
    )
    assert len(train) == 500 and len(held_out) == 100 and not train & held_out


def test_as_a_row_only_the_answer_counts() -> None:
    rows = task("string_task", count=4)
    prompt, answer = rows.prompt_answer_pairs[0]
    ids, counts, positions = rows[0]
    end = len(prompt) + len(answer) + 1
    assert tokenizer().decode(ids[:end].tolist()) == prompt + answer and ids[end - 1] == 0
    assert np.flatnonzero(counts).tolist() == list(range(len(prompt), end))
    assert positions[:end].tolist() == list(range(end)) and positions[end] == 0
    with pytest.raises(ProblemsFound, match="seq_len is 3"):
        PromptDataset(rows.prompt_answer_pairs, tokenizer(), sample_length=4)[0]


# seven questions of each kind; those of a file and of the Hub are given below
SEVEN = {
    "string_task": "count: 7",
    "arithmetic": "count: 7",
    "guess_task": "count: 7",
    "lookup_task": "count: 7",
    "questions": "path: questions.jsonl",
    "hub_questions": f"repo: a/b, revision: '{'0' * 40}'",
}


@pytest.mark.parametrize("name", SEVEN)
def test_questions_come_in_the_order_that_the_recipe_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor gave the order to the loader itself, and no recipe was read."""
    monkeypatch.chdir(tmp_path)
    records = [{"prompt": f"{number}", "answer": "a"} for number in range(7)]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, records)))
    monkeypatch.setattr(
        "titanrun.components.data.hub_records.iter_hub_records",
        lambda config: ((f"record {index}", record) for index, record in enumerate(records)),
    )

    def order(text: str) -> list[int]:
        recipe, resolved = tmp_path / "recipe.yaml", tmp_path / "resolved.yaml"
        recipe.write_text(TEXT)
        dataset = f"training.dataset={{name: {name}, {SEVEN[name]}, {text}}}"
        resolved.write_text(resolve_recipe(str(recipe), [dataset], environment={}).text)
        run = load_resolved(resolved)
        assert run.rl is not None
        loader = build_prompt_data(run, run.rl, rendezvous(resolved, RankInfo())).dataloader
        found = []
        with suppress(DataloaderExhaustedError):
            for _ in range(9):
                found += loader.next_indices()
        return found

    assert order("shuffle: false, repeat: true") == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert order("shuffle: false, repeat: false") == [0, 1, 2, 3, 4, 5, 6]
    shuffled = order("shuffle: true, repeat: false")
    assert sorted(shuffled) == [0, 1, 2, 3, 4, 5, 6] != shuffled


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"prompt": 1, "answer": "b"}',
        '{"prompt": "a"}',
        '{"prompt": "", "answer": "b"}',
    ],
)
def test_a_file_that_is_none_names_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "questions.jsonl").write_text(f'{{"prompt": "a", "answer": "b"}}\n\n{line}\n')
    with pytest.raises(ProblemsFound, match=r"line 3 of .*questions\.jsonl"):
        task("questions", path=str(tmp_path / "questions.jsonl"))
