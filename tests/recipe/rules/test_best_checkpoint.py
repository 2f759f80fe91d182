"""keep_best chooses among checkpoints that are validated."""

import re
from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.validation_levels import validate_file

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny, seq_len: 64, steps: 1000}
checkpoint: {enable: true, interval: 100, keep_best: 1}
validation: {enable: true}
"""


def find_warning(folder: Path, *overrides: str) -> tuple[str, str] | None:
    file = folder / "mine.yaml"
    file.write_text(RECIPE)
    warnings = resolve_recipe(str(file), overrides, environment={}).warnings
    found = [problem for problem in warnings if problem.rule == "best-is-validated"]
    return (found[0].message, str(found[0].hint)) if found else None


def read_settings(text: str) -> dict[str, str]:
    """Return the settings that a hint lists."""
    listed = re.split(", (?=[a-z]+\\.)| and (?=[a-z]+\\.)", text)
    return dict(setting.split(": ", 1) for setting in listed)


def find_problems(folder: Path, settings: dict[str, str], text: str) -> list[Problem]:
    file = folder / "mine.yaml"
    file.write_text(text)
    overrides = [f"{name}={value}" for name, value in settings.items()]
    return list(validate_file(str(file), overrides, level="rules", environment={}).problems)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("validation.freq=30",), "4 of 10 checkpoints"),
        (("validation.freq=7",), "2 of 10 checkpoints"),
        (("validation.freq=300", "checkpoint.interval=100"), "4 of 10 checkpoints"),
        (("checkpoint.interval=5000",), "1 of 1 checkpoint"),
        (("validation.freq=900",), "2 of 10 checkpoints"),
        (("checkpoint.interval=10m",), "the checkpoints that happen to be validated"),
        (("training.steps=null", "training.epochs=2", "validation.freq=30"), "1 in 3 checkpoints"),
    ],
)
def test_what_is_rarely_validated_is_told_and_the_help_helps(
    overrides: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    found = find_warning(tmp_path, *overrides)
    assert found is not None and f"chooses among {told}: " in found[0]
    advised = read_settings(found[1].removeprefix("set "))
    written = dict(word.split("=") for word in overrides)
    settings = [f"{name}={text}" for name, text in {**written, **advised}.items()]
    assert find_warning(tmp_path, *settings) is None


@pytest.mark.parametrize(
    "overrides",
    [
        ("validation.freq=50",),
        ("validation.freq=100",),
        ("validation.freq=30", "checkpoint.keep_best=0"),
        ("validation.freq=30", "checkpoint.keep_latest_k=0"),
    ],
)
def test_checkpoints_that_are_all_validated_or_kept_are_fine(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    assert find_warning(tmp_path, *overrides) is None


BARE = """version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: DATASET, seq_len: 64, steps: 1000}
"""
DATASETS = [
    "tiny",
    "{name: text, path: a.jsonl}",
    "{name: text, path: a.jsonl, streaming: true}",
    "c4",
    "{name: c4, max_documents: 9}",
    "{name: tokens, path: a}",
    "{name: mixture, sources: [{dataset: {name: text, path: a, streaming: true}}]}",
]
OTHERS = [
    "",
    "validation: {enable: false}\n",
    "validation: {enable: false, holdout: 0.1}\n",
    "validation: {dataset: {name: text, path: b.jsonl}}\n",
    "validation: {freq: 30}\n",
    "checkpoint: {enable: false, keep_latest_k: 0}\n",
    "checkpoint: {interval: 10m}\n",
]
ENTRIES = [
    ("load_best_model_at_end: true\n", ("load_best_model_at_end",), "write "),
    ("checkpoint: {keep_best: true}\n", ("checkpoint", "keep_best"), "write 1"),
    ("checkpoint: {keep_best: 1}\n", ("checkpoint", "keep_best"), "set "),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=["key", "switch", "rule"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_the_help_for_keep_best_names_all_settings_that_it_needs(
    dataset: str, entry: tuple[str, tuple[str, ...], str], tmp_path: Path
) -> None:
    written, path, start = entry
    for other in OTHERS:
        if "checkpoint" in other and "checkpoint" in written:
            continue
        if "tokens" in dataset and "holdout" in other:
            continue
        text = BARE.replace("DATASET", dataset) + other
        found = find_problems(tmp_path, {}, text + written)
        (hint,) = [one.hint or "" for one in found if one.path == path]
        assert hint.startswith(start)
        advised = (
            hint.replace("PATH", "b").removeprefix(start).removeprefix(", and ").partition(";")[0]
        )
        settings = {"checkpoint.keep_best": "1", **(read_settings(advised) if advised else {})}
        left = find_problems(tmp_path, settings, text)
        assert [(one.message, one.hint) for one in left] == []


def test_a_best_model_that_is_not_wanted_is_removed(tmp_path: Path) -> None:
    text = BARE.replace("DATASET", "tiny")
    found = find_problems(tmp_path, {}, text + "load_best_model_at_end: false\n")
    assert [one.hint for one in found] == ["remove it: checkpoint.keep_best is 0 by default"]
    found = find_problems(tmp_path, {}, text + "checkpoint: {keep_best: false}\n")
    assert [one.hint for one in found] == ["write 0"]
