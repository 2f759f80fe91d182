"""Files and shares in sections that have no such key are told where they belong, and fit there."""

from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file

RECIPE = """version: 1
kind: sft
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training: {dataset: {name: chat, path: chats.jsonl, packing: best_fit}, seq_len: 64}
"""


def find_problems(folder: Path, *overrides: str) -> list[Problem]:
    file = folder / "mine.yaml"
    file.write_text(RECIPE)
    return list(validate_file(str(file), list(overrides), level="schema", environment={}).problems)


@pytest.mark.parametrize(
    ("given", "hint", "followed"),
    [
        (
            "validation.path=held.jsonl",
            "write validation: {enable: true, dataset: {name: chat, path: held.jsonl}}",
            "validation={enable: true, dataset: {name: chat, path: held.jsonl}}",
        ),
        (
            "training.val_dataset=held.jsonl",
            "write validation: {enable: true, dataset: {name: chat, path: held.jsonl}}",
            "validation={enable: true, dataset: {name: chat, path: held.jsonl}}",
        ),
        (
            "validation.split=0.1",
            "write validation.holdout: 0.1, of the training data",
            "validation.holdout=0.1",
        ),
        (
            "training.path=more.jsonl",
            "write training.dataset: {name: chat, path: more.jsonl}",
            "training.dataset={name: chat, path: more.jsonl}",
        ),
        (
            "model.path=models/small",
            "write model.hf_assets_path: models/small",
            "model.hf_assets_path=models/small",
        ),
    ],
)
def test_the_help_leads_to_a_recipe_without_the_problem(
    given: str, hint: str, followed: str, tmp_path: Path
) -> None:
    (problem,) = find_problems(tmp_path, given)
    assert (problem.code, problem.hint) == ("unknown-key", hint)
    assert find_problems(tmp_path, followed) == []


def test_a_path_in_the_place_of_a_dataset_is_conversations_or_texts(tmp_path: Path) -> None:
    (problem,) = find_problems(tmp_path, "training.dataset=data/chats.jsonl")
    assert str(problem.hint).startswith(
        "write {name: chat, path: data/chats.jsonl} for conversations or {name: text, path: "
    )
