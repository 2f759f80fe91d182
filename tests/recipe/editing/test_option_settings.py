"""Settings as options of a command: which override stands for one."""

import pytest

from titanrun.cli.arguments import CommandParser
from titanrun.cli.fork import run as fork
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.editing.option_settings import describe_option_setting


def get_hint(*words: str, takes_overrides: bool = True) -> str | None:
    """The help of a command with one file and the option --seedling for these words."""
    parser = CommandParser("try", "", "")
    parser.add_argument("recipe")
    parser.add_argument("--seedling")
    if takes_overrides:
        parser.allow_overrides()
    with pytest.raises(ProblemsFound) as found:
        parser.parse_args(["mine.yaml", *words])
    return found.value.problems[0].hint


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--learning_rate", "1e-4"], "write optimizer.lr=1e-4"),
        (["--learning-rate=1e-4"], "write optimizer.lr=1e-4"),
        (["--lr", "3"], "write optimizer.lr=3"),
        (["--lr"], "write optimizer.lr=VALUE"),
        (["--steps", "5"], "write training.steps=5 or validation.steps=5"),
        (["--seed=1"], "write debug.seed=1"),
        (["--name=me"], "write name=VALUE"),
        (["--num_epochs", "3"], "write training.epochs=3"),
        (["--save_total_limit", "3"], "write checkpoint.keep_latest_k=3"),
        (["--sample-packing"], "titanrun explain sample_packing tells what does it here"),
        (["--seedlin", "3"], "did you mean '--seedling'?"),
        (["--zzz"], "see titanrun try --help"),
        (["training.steps", "5"], "write training.steps=5, without a space"),
        (["training.steps", "=", "5"], "write training.steps=5, without a space"),
        (["optimizer.lr:", "1e-4"], "write optimizer.lr=1e-4, without a space"),
        (["dump_folder", "runs/a"], "write dump_folder=VALUE"),
        (["lr", "=", "1e-4"], "write optimizer.lr=1e-4"),
        (["other.yaml", "5"], "see titanrun try --help"),
        (["zzz", "5"], "see titanrun try --help"),
        (["--config"], "write the recipe without it: titanrun try RECIPE"),
    ],
)
def test_an_unknown_option_is_told_the_override(words: list[str], hint: str) -> None:
    assert get_hint(*words) == hint


def test_a_command_without_overrides_names_none() -> None:
    assert get_hint("--lr", "3", takes_overrides=False) == "see titanrun try --help"
    assert get_hint("lr", "3", takes_overrides=False) == "see titanrun try --help"


@pytest.mark.parametrize("value", ["hf_abc123", "1e-4x", "", "truely"])
def test_only_numbers_and_switches_are_repeated(value: str) -> None:
    assert describe_option_setting("--lr", value) == "write optimizer.lr=VALUE"
    assert describe_option_setting("--lr", "True") == "write optimizer.lr=True"


@pytest.mark.parametrize("option", ["-o", "--output", "--output-dir=mine"])
def test_where_a_run_is_written_is_a_setting(option: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        fork(["runs/a", option, "mine"])
    assert found.value.problems[0].hint == "write dump_folder=FOLDER: the directory of the run"
