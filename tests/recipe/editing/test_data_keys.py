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
HELD = "{enable: true, dataset: {name: chat, path: held.jsonl, packing: best_fit}}"
DPO = ("kind=pretrain", "loss=dpo", "training.dataset={name: preference, path: pairs.jsonl}")


def find_problems(folder: Path, *overrides: str) -> list[Problem]:
    file = folder / "mine.yaml"
    file.write_text(RECIPE)
    return list(validate_file(str(file), list(overrides), level="schema", environment={}).problems)


@pytest.mark.parametrize(
    ("given", "hint", "followed"),
    [
        (
            "validation.path=held.jsonl",
            f"write validation: {HELD}",
            f"validation={HELD}",
        ),
        (
            "training.val_dataset=held.jsonl",
            f"write validation: {HELD}",
            f"validation={HELD}",
        ),
        (
            "validation.split=0.1",
            "write validation.holdout: 0.1, of the training data",
            "validation.holdout=0.1",
        ),
        ("eval_dataset=held.jsonl", f"write validation: {HELD}", f"validation={HELD}"),
        (
            "validation.percent=5",
            "write validation.holdout: 0.05, of the training data",
            "validation.holdout=0.05",
        ),
        (
            "validation.val_size=20%",
            "write validation.holdout: 0.2, of the training data",
            "validation.holdout=0.2",
        ),
        (
            "validation.split=test",
            "write validation.dataset, with this split, or validation.holdout: 0.05, of the "
            "training data",
            "validation.holdout=0.05",
        ),
        (
            "training.path=more.jsonl",
            "write training.dataset: {name: chat, path: more.jsonl}",
            "training.dataset={name: chat, path: more.jsonl}",
        ),
        (
            "training.dataset={name: preference, path: pairs.jsonl, packing: best_fit}",
            "remove it: each pair has a sequence of its own",
            "training.dataset={name: preference, path: pairs.jsonl}",
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


@pytest.mark.parametrize(
    ("given", "hint", "followed"),
    [
        (
            "training.steps=-1",
            "write training.epochs: 3 in its place, or a number of steps",
            "training.epochs=3",
        ),
        ("activation_checkpoint=true", "write full", "activation_checkpoint=full"),
        (
            "training.system_prompt=Be brief",
            "write it into the records: as a message of the system, or in a column that "
            "training.dataset.system_column names",
            "training.dataset.system_column=system",
        ),
        (
            'converters=[{name: lora, target_modules: "q_proj,v_proj"}]',
            "write [wq, wv]",
            "converters=[{name: lora, target_modules: [wq, wv]}]",
        ),
        (
            "checkpoint=runs/sft",
            "write {initial_load_path: runs/sft}",
            "checkpoint={initial_load_path: runs/sft}",
        ),
        (
            "training.epochs=-1",
            "write how many epochs, or training.steps in its place",
            "training.epochs=2",
        ),
        ("training.dataset.layout=chat", "write messages", "training.dataset.layout=messages"),
        (
            "tokenizer={name: tiny, chat_template: default}",
            "remove it: the template in the tokenizer's folder is the default",
            "tokenizer=tiny",
        ),
        ("metrics=wandb", "write {trackers: [wandb]}", "metrics={trackers: [wandb]}"),
        (
            "training.dataset.train_on=completion",
            "write replies",
            "training.dataset.train_on=replies",
        ),
    ],
)
def test_values_of_other_programs_are_told_what_they_mean(
    given: str, hint: str, followed: str, tmp_path: Path
) -> None:
    (problem,) = find_problems(tmp_path, given)
    assert problem.hint == hint
    assert find_problems(tmp_path, followed) == []


@pytest.mark.parametrize(
    ("recipe", "given", "hint"),
    [
        ((), "training.dataset=data/chats.jsonl", "write {name: chat, path: data/chats.jsonl}"),
        (
            (),
            "validation.dataset=held.jsonl",
            "write {name: chat, path: held.jsonl, packing: best_fit}, and validation.enable: true",
        ),
        (
            DPO,
            "validation.dataset=held.jsonl",
            "write {name: preference, path: held.jsonl}, and validation.enable: true",
        ),
        (
            (),
            "training.dataset={name: mixture, sources: [{path: a.jsonl, weight: 1}]}",
            "write {dataset: {name: chat, path: a.jsonl}, weight: 1}",
        ),
        ((), "training.dataset={sources: [{path: a.jsonl}]}", "write name: mixture"),
        ((), "training.dataset={path: a.jsonl}", "write name: chat"),
        ((), "training.dataset=OWNER/chats", "write {name: chat, repo: OWNER/chats}"),
        (
            DPO[:2],
            "training.dataset={sources: [{path: a.jsonl}]}",
            "replies that are compared come from one dataset, not from a mixture: write the "
            "records of all datasets, with the same columns, to files of one folder, and name it "
            "in training.dataset.path",
        ),
    ],
)
def test_a_path_without_its_dataset_is_that_of_the_recipe(
    recipe: tuple[str, ...], given: str, hint: str, tmp_path: Path
) -> None:
    (problem,) = find_problems(tmp_path, *recipe, given)
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("record", "named"),
    [('{"text": "moon"}', "text"), ('{"messages": [{"role": "user", "content": "moon"}]}', "chat")],
)
def test_a_path_of_a_file_that_is_here_is_read_by_its_columns(
    record: str, named: str, tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(record)
    (problem,) = find_problems(tmp_path, "kind=pretrain", f"training.dataset={file}")
    assert problem.hint == f'write {{name: {named}, path: "{file}"}}'


def test_a_path_that_nothing_tells_of_is_conversations_or_texts(tmp_path: Path) -> None:
    (problem,) = find_problems(tmp_path, "kind=pretrain", "training.dataset=data/chats.jsonl")
    assert str(problem.hint).startswith(
        "write {name: chat, path: data/chats.jsonl} for conversations or {name: text, path: "
    )
