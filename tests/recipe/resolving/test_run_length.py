"""The length of a run: steps, tokens or epochs, and the one nearest the user counts."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.config.tree import find_node
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.run_length import describe_short_epochs

HEAD = """\
version: 1
name: lengths
model: {name: llama3, flavor: debugmodel}
"""
# 16 rows of 64 tokens: 1024 tokens a step
TRAINING = "training: {dataset: tiny, seq_len: 64, global_batch_size: 16, %s}\n"


def recipe(folder: Path, length: str, more: str = "", name: str = "recipe.yaml") -> str:
    (folder / name).write_text(HEAD + TRAINING % length + more, encoding="utf-8")
    return str(folder / name)


def lengths(resolved: Resolved) -> tuple[object, ...]:
    training, schedule = resolved.run.training, resolved.run.lr_scheduler
    return (
        training.steps,
        training.tokens,
        training.epochs,
        schedule.warmup_steps,
        schedule.total_steps,
    )


def refused(file: str, *overrides: str) -> list[tuple[str, str, list[str]]]:
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(file, overrides, environment={})
    return [
        (problem.label, str(problem.origin), [str(item.origin) for item in problem.related])
        for problem in found.value.problems
    ]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("", (10000, None, None, 200, 10000)),
        ("steps: auto", (10000, None, None, 200, 10000)),
        ("steps: 80", (80, None, None, 8, 80)),
        ("tokens: 102400", (100, None, None, 10, 100)),
        ("tokens: 102401", (101, None, None, 10, 101)),
        ("tokens: 1", (1, None, None, 0, 1)),
        ("tokens: 20B", (19531250, None, None, 200, 19531250)),
        ("epochs: 3", (None, None, 3, None, None)),
        ("steps: null, epochs: 3", (None, None, 3, None, None)),
    ],
)
def test_each_length_decides_what_follows_from_it(
    tmp_path: Path, length: str, expected: tuple[object, ...]
) -> None:
    resolved = resolve_recipe(recipe(tmp_path, length), environment={})
    assert lengths(resolved) == expected
    (tmp_path / "resolved.yaml").write_text(resolved.text, encoding="utf-8")
    again = resolve_recipe(str(tmp_path / "resolved.yaml"), environment={})
    assert (again.text, again.warnings) == (resolved.text, ())


def test_two_lengths_in_one_file_are_a_conflict_that_names_both_places(tmp_path: Path) -> None:
    file = recipe(tmp_path, "steps: 5, epochs: 2")
    assert refused(file) == [("conflict/one-length", f"{file}:4:81", [f"{file}:4:70"])]


def test_two_lengths_on_the_command_line_are_a_conflict(tmp_path: Path) -> None:
    file = recipe(tmp_path, "steps: 5")
    found = refused(file, "training.steps=6", "training.tokens=1M")
    assert [label for label, _, _ in found] == ["conflict/one-length"]


@pytest.mark.parametrize(
    "length", ["steps: 5", "epochs: 2", "tokens: 1M", "steps: null, epochs: 2"]
)
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.steps=50", (50, None, None, 5, 50)),
        ("training.tokens=102400", (100, None, None, 10, 100)),
        ("training.epochs=7", (None, None, 7, None, None)),
    ],
)
def test_an_override_replaces_the_length_of_the_file(
    tmp_path: Path, length: str, override: str, expected: tuple[object, ...]
) -> None:
    assert lengths(resolve_recipe(recipe(tmp_path, length), [override], environment={})) == expected


@pytest.mark.parametrize("length", ["steps: 5", "epochs: 2", "tokens: 1M"])
def test_an_override_replaces_the_length_of_a_resolved_recipe(tmp_path: Path, length: str) -> None:
    text = resolve_recipe(
        recipe(tmp_path, length, "lr_scheduler: {warmup_steps: auto}\n"), environment={}
    ).text
    (tmp_path / "resolved.yaml").write_text(text, encoding="utf-8")
    changed = resolve_recipe(
        str(tmp_path / "resolved.yaml"),
        ["training.tokens=4096", "lr_scheduler.warmup_steps=0"],
        environment={},
    )
    assert lengths(changed)[:3] == (4, None, None)


def test_an_override_says_which_length_it_replaced(tmp_path: Path) -> None:
    file = recipe(tmp_path, "steps: 5")
    node = find_node(
        resolve_recipe(file, ["training.epochs=2"], environment={}).tree, ("training", "epochs")
    )
    assert node is not None
    assert [str(origin) for origin in node.shadowed_origins] == [f"{file}:4:70"]


def test_a_file_replaces_the_length_of_what_it_extends(tmp_path: Path) -> None:
    recipe(tmp_path, "steps: 5", name="base.yaml")
    file = tmp_path / "longer.yaml"
    file.write_text(
        "extends: base.yaml\nversion: 1\ntraining: {tokens: 102400}\n", encoding="utf-8"
    )
    assert lengths(resolve_recipe(str(file), environment={}))[:3] == (100, None, None)


@pytest.mark.parametrize(
    ("epochs", "samples", "message", "hint"),
    [
        (
            1,
            1,
            "1 epoch has 1 sequence, but training.global_batch_size is 8",
            "to 1 for 1 step, ",
        ),
        (
            1,
            2,
            "1 epoch has 2 sequences, but training.global_batch_size is 8",
            "to 1 for 2 steps, ",
        ),
        (2, 3, "2 epochs of 3 sequences have 6 sequences, but", "training.epochs to 3 for 1 step"),
    ],
)
def test_epochs_without_a_step_are_told_what_would_give_one(
    epochs: int, samples: int, message: str, hint: str
) -> None:
    told, help_text = describe_short_epochs(epochs, samples, 8)
    assert told.startswith(message) and hint in help_text


def test_a_smaller_batch_has_a_local_batch_that_divides_it_and_enough_steps() -> None:
    _, found = describe_short_epochs(3, 20, 64, local_size=8)
    both = "training.local_batch_size and training.global_batch_size"
    assert found.startswith(f"set {both} to 4 for 15 steps, training.epochs to 4 for 1 step")
    _, found = describe_short_epochs(3, 20, 64, local_size=2)
    assert found.startswith("set training.global_batch_size to 4 for 15 steps")


def test_null_stands_for_epochs_only(tmp_path: Path) -> None:
    file = recipe(tmp_path, "steps: null", "lr_scheduler: {warmup_steps: null}\n")
    assert [label for label, _, _ in refused(file)] == ["conflict/null-follows-epochs"] * 2
