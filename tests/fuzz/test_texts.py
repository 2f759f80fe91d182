"""Bytes, texts and overrides that nobody would write: problems with their place, or a recipe. Never
a traceback."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from titanrun.config.diagnostics import render_problems
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import resolve_recipe

# what the readers give a meaning to, and what recipes are made of
PIECES = [
    "version: 1\n",
    "model: llama3\n",
    "model:\n",
    "  flavor: debugmodel\n",
    "training: {dataset: tiny}\n",
    "training:\n",
    "  steps: ",
    "- ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "&a ",
    "*a",
    "*b",
    "<<: ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    ": ",
    "? ",
    "!!int ",
    "!",
    "| \n",
    ">-\n",
    "'",
    '"',
    "#",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "%TAG ! x\n",
    "${",
    "}",
    "$${",
    "env:HOME",
    "1e3",
    "010",
    "0x",
    ".nan",
    "null",
    "~",
    "true",
    "\\",
    "\\u12",
    '"\\ud800"',
    "\ufeff",
    "\u00a0",
    "\u2028",
    "\0",
    "é",
    "[[a]]\n",
    "[a.b]\n",
    "a = 1\n",
    "a.b = ",
    "'''",
    '"""',
    "=",
    "1979-05-27",
    "x-a: ",
    "extends: ",
    "recipe.yaml",
    "plugins: [os]\n",
    "converters: ",
    "name",
    "tiny",
    "@",
    "`",
    "9" * 30,
]
PATHS = [
    "training.steps",
    "training",
    "model",
    "model.flavor",
    "optimizer.lr",
    "metrics.trackers",
    "metrics.trackers[0]",
    "converters",
    "name",
]
PATHS += [
    "x",
    "",
    "training.steps.x",
    "training[0]",
    "model.rope.scaling",
    "tokenizer",
    "version",
    "extends",
    "é",
    "a-b",
    "training.",
    ".x",
    "[0]",
]
OPERATORS = ["=", "+=", "-=", "!", "", "==", " = ", "=!", ": ", " "]
VALUES = [
    "1",
    "-1",
    "null",
    "",
    "''",
    '"',
    "'",
    "[",
    "]",
    "{a",
    "[1, 2]",
    "a,b",
    "{name: x}",
    "${",
    "${training.seq_len}",
    "${env:X}",
    "#",
    "a # b",
    "é",
]
VALUES += [
    "\0",
    "\n",
    "\ud800",
    "*a",
    "&a [*a]",
    "!!python/name:os.system",
    "os.system",
    "auto",
    "010",
    "1e400",
    "9" * 5000,
    "- a",
    "a: b",
    "=",
    "x=y",
]
QUIET = list(HealthCheck)


def few(examples: int) -> settings:
    """The same examples in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=QUIET,
    )


def many(examples: int) -> settings:
    """Other examples in each run."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=QUIET)


def check_file(data: bytes, file: Path) -> None:
    """A file is a recipe, or all that is wrong with it has a place in it."""
    file.write_bytes(data)
    try:
        resolve_recipe(str(file), environment={"HOME": "/root"})
    except ProblemsFound as found:
        for problem in found.problems:
            assert problem.origin is not None, problem
            assert problem.origin.line >= 1, problem
            assert 1 <= problem.origin.column <= problem.origin.end_column, problem
        assert render_problems(found.problems)


def check_arguments(arguments: list[str]) -> None:
    """Overrides make a run, or all that is wrong with them is said."""
    recipe = str(shipped_recipes.get_shipped_recipe("llama3_debug").path)
    try:
        resolve_recipe(recipe, arguments, environment={})
    except ProblemsFound as found:
        assert all(problem.origin is not None for problem in found.problems), found.problems
        assert render_problems(found.problems)


def any_bytes(file: Path, how: settings) -> None:
    @how
    @given(st.binary(max_size=60))
    def check(data: bytes) -> None:
        check_file(data, file)

    check()


def any_text(file: Path, how: settings) -> None:
    @how
    @given(
        st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
    )
    def check(text: str) -> None:
        check_file(text.encode("utf-8", "surrogatepass"), file)

    check()


def any_override(how: settings) -> None:
    built = st.tuples(
        st.sampled_from(["", "--"]),
        st.sampled_from(PATHS),
        st.sampled_from(OPERATORS),
        st.sampled_from(VALUES),
    ).map("".join)
    free = st.text(max_size=20)

    @how
    @given(st.lists(st.one_of(built, free), min_size=1, max_size=3))
    def check(arguments: list[str]) -> None:
        check_arguments(arguments)

    check()


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_any_bytes_are_a_recipe_or_located_problems(tmp_path: Path, suffix: str) -> None:
    any_bytes(tmp_path / f"recipe{suffix}", few(100))


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_any_text_is_a_recipe_or_located_problems(tmp_path: Path, suffix: str) -> None:
    any_text(tmp_path / f"recipe{suffix}", few(200))


def test_any_override_is_a_change_or_a_located_problem() -> None:
    any_override(few(250))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_many_bytes_and_texts(tmp_path: Path, suffix: str) -> None:
    any_bytes(tmp_path / f"recipe{suffix}", many(10_000))
    any_text(tmp_path / f"recipe{suffix}", many(20_000))


@pytest.mark.slow
def test_many_overrides() -> None:
    any_override(many(10_000))
