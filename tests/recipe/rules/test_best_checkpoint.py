"""keep_best chooses among checkpoints that are validated."""

from pathlib import Path

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe

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
    names, _, value = found[1].removeprefix("set ").partition(": ")
    advised = dict.fromkeys(names.split(" and "), value)
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
