"""Every shipped recipe with one thing changed at a time: a problem with its place, or the run that
the change means. Never a traceback."""

# ruff: noqa: RUF001

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from titanrun.config.base import dump_config
from titanrun.config.compose import compose
from titanrun.config.diagnostics import render_problems
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.serialize import to_toml, to_yaml
from titanrun.config.tree import format_path, to_plain_data
from titanrun.config.type_introspection import find_value
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import resolve_recipe

HOLE = "@hole@"
DIGITS = "9" * 100_000
NOTHING = object()
"""Stands for a text that has no value, or none that is worth saying."""
# what is written, and what it means in YAML
YAML_VALUES: list[tuple[str, Any]] = [
    ("null", None),
    ("~", None),
    ("", None),
    ("true", True),
    ("false", False),
    ("0", 0),
    ("1", 1),
    ("-1", -1),
    ("7", 7),
    ("-9223372036854775809", NOTHING),
    ("9223372036854775807", 2**63 - 1),
    ("3e-4", 3e-4),
    ("1e6", 1e6),
    ("-0.0", -0.0),
    ("0x1F", 31),
    ("0o17", 15),
    (".nan", NOTHING),
    (".inf", NOTHING),
    ("-.inf", NOTHING),
    ("1e309", NOTHING),
    (DIGITS, NOTHING),
    ("0." + DIGITS, NOTHING),
    ("010", NOTHING),
    ("1_000", "1_000"),
    ("1:30:00", "1:30:00"),
    ('"8"', "8"),
    ("on", "on"),
    ("off", "off"),
    ("yes", "yes"),
    ("No", "No"),
    ("2k", "2k"),
    ("4GiB", "4GiB"),
    ("10m", "10m"),
    ("10B", "10B"),
    ("2020-01-01", "2020-01-01"),
    ("[]", []),
    ("{}", {}),
    ("[1]", [1]),
    ("[a, [b]]", ["a", ["b"]]),
    ("{a: 1}", {"a": 1}),
    ("{name: x}", {"name": "x"}),
    ("{name: }", {"name": None}),
    ("[{name: 1}]", [{"name": 1}]),
    ('""', ""),
    ('" "', " "),
    ('"\\0"', "\0"),
    ("os.system", "os.system"),
    ("аdamw", "аdamw"),
    ("ﬁx", "ﬁx"),
    ('"${x}"', NOTHING),
    ('"${env:HOME}"', NOTHING),
    ('"${training.steps}"', NOTHING),
    ("${", NOTHING),
    ("*none", NOTHING),
    ("&a [*a]", NOTHING),
    ("!!python/object/apply:os.system [x]", NOTHING),
    ("!x 1", NOTHING),
    ("|\n  x", NOTHING),
    ("'", NOTHING),
    ("[", NOTHING),
    ("a: b", NOTHING),
    ("\t1", NOTHING),
    ("\u00a01", NOTHING),
    ("auto", "auto"),
    ("AUTO", "AUTO"),
    ("../../x", "../../x"),
    ("/etc/passwd", "/etc/passwd"),
]
TOML_VALUES: list[tuple[str, Any]] = [
    ('"null"', None),
    ("true", True),
    ("0", 0),
    ("-1", -1),
    ("7", 7),
    ("3e-4", 3e-4),
    ("1e6", 1e6),
    ("nan", NOTHING),
    ("inf", NOTHING),
    ("1e309", NOTHING),
    (DIGITS, NOTHING),
    ("010", NOTHING),
    ("1_000", 1000),
    ('"8"', "8"),
    ("on", NOTHING),
    ('"2k"', "2k"),
    ("4GiB", NOTHING),
    ("2020-01-01", NOTHING),
    ("07:32:00", NOTHING),
    ("[]", []),
    ("{}", {}),
    ("[1]", [1]),
    ("{ a = 1 }", {"a": 1}),
    ('""', ""),
    ("'", NOTHING),
    ("[", NOTHING),
    ("", NOTHING),
    ('"\\u0000"', "\0"),
    ('"аdamw"', "аdamw"),
    ('"${x}"', NOTHING),
    ("9223372036854775808", NOTHING),
]
LOOK_ALIKES = str.maketrans(
    {"a": "а", "e": "е", "o": "о", "i": "і", "p": "р", "c": "с", "x": "х", "s": "ѕ"}
)
RENAMES: list[Callable[[str], str]] = [
    str.upper,
    str.title,
    lambda key: key.translate(LOOK_ALIKES),
    lambda key: f"{key}\u200b",
    lambda key: f"x{key}",
    lambda key: key[:-1],
    lambda key: key.replace("_", "-"),
    lambda key: f" {key}",
    lambda key: "",
    lambda key: "<<",
    lambda key: f"{key}.{key}",
    lambda key: "é\u0301",
]


@dataclass(frozen=True)
class Mutant:
    """A changed recipe: what was done, its text, the same in its plainest form (None: there is
    none), and what must stand where."""

    what: str
    text: str
    suffix: str
    canonical: Callable[[], str] | None = None
    path: DataPath = ()
    value: Any = NOTHING


def shipped() -> Iterator[tuple[str, Any]]:
    for entry in shipped_recipes.list_shipped_recipes():
        yield (
            entry.name,
            to_plain_data(compose(str(entry.path), shipped_recipes.get_extends_roots())),
        )


def places(data: Any, path: DataPath = ()) -> Iterator[DataPath]:
    """The path of every key and item."""
    for step, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield (*path, step)
        yield from places(value, (*path, step))


def put(data: Any, path: DataPath, value: Any) -> Any:
    """A copy of `data` with `value` at `path`; NOTHING drops the key."""
    step, *rest = path
    if isinstance(data, list):
        return [
            item if at != step else put(item, tuple(rest), value) if rest else value
            for at, item in enumerate(data)
        ]
    if not rest and value is NOTHING:
        return {key: item for key, item in data.items() if key != step}
    return {**data, step: put(data[step], tuple(rest), value) if rest else value}


def plainest(data: Any, path: DataPath, value: Any) -> str:
    """A recipe with `value` at `path` as YAML without any choice of spelling."""
    return to_yaml(escape_references(put(data, path, value)))


def rename(data: Any, path: DataPath, name: str) -> Any:
    """A copy of `data` in which the key at `path` is another."""
    holder = find_value(data, path[:-1])
    renamed = {name if key == path[-1] else key: value for key, value in holder.items()}
    return put(data, path[:-1], renamed) if path[:-1] else renamed


def mutants() -> Iterator[Mutant]:
    """Every change of every recipe."""
    for name, data in shipped():
        for path in places(data):
            where = f"{name}: {format_path(path)}"
            yield from new_values(where, data, path, ".yaml")
            yield from new_values(where, data, path, ".toml")
            if isinstance(path[-1], str):
                yield from new_keys(where, data, path)


def new_values(where: str, data: Any, path: DataPath, suffix: str) -> Iterator[Mutant]:
    """Everything else that may stand at a key."""
    write = to_yaml if suffix == ".yaml" else to_toml
    with_hole = write(escape_references(put(data, path, HOLE)))
    for text, value in YAML_VALUES if suffix == ".yaml" else TOML_VALUES:
        canonical = None if value is NOTHING else partial(plainest, data, path, value)
        yield Mutant(
            f"{where} = {text[:40]!r} in {suffix}",
            with_hole.replace(f'"{HOLE}"', text),
            suffix,
            canonical,
            path,
            value,
        )


def new_keys(where: str, data: Any, path: DataPath) -> Iterator[Mutant]:
    """The key gone, twice, or called something else; the same for its value's shape."""
    if len(path) > 1:
        yield Mutant(f"{where} deleted", plainest(data, path, NOTHING), ".yaml")
    for change in RENAMES:
        name = change(str(path[-1]))
        if name not in find_value(data, path[:-1]):
            yield Mutant(
                f"{where} called {name!r}",
                to_yaml(escape_references(rename(data, path, name))),
                ".yaml",
            )
    lines = to_yaml(escape_references(put(data, path, HOLE))).split("\n")
    at = next(number for number, line in enumerate(lines) if HOLE in line)
    yield Mutant(
        f"{where} twice",
        "\n".join([*lines[: at + 1], lines[at].replace("- ", "  "), *lines[at + 1 :]]),
        ".yaml",
    )
    for other in (
        [find_value(data, path)],
        {"name": find_value(data, path)},
        {str(path[-1]): find_value(data, path)},
    ):
        yield Mutant(
            f"{where} wrapped in a {type(other).__name__}",
            to_yaml(escape_references(put(data, path, other))),
            ".yaml",
        )


def check(mutant: Mutant, folder: Path) -> str:
    """Whether a mutant was refused or taken. Raises AssertionError where neither was done well."""
    file = folder / f"recipe{mutant.suffix}"
    file.write_text(mutant.text, encoding="utf-8", newline="")
    try:
        resolved = resolve_recipe(str(file), environment={"HOME": "/root"})
    except ProblemsFound as found:
        assert any(problem.severity == "error" for problem in found.problems)
        check_problems(found.problems, mutant.text)
        return "refused"
    check_problems(resolved.warnings, mutant.text)
    if mutant.canonical is not None:
        same = folder / "plain" / "recipe.yaml"
        same.parent.mkdir(exist_ok=True)
        same.write_text(mutant.canonical(), encoding="utf-8", newline="")
        assert resolve_recipe(str(same), environment={}).text == resolved.text
    if mutant.value is not NOTHING and mutant.path[-1] not in ("name", "dump_folder"):
        said(mutant.value, find_value(dump_config(resolved.recipe), mutant.path))
    return "taken"


def said(written: Any, taken: Any) -> None:
    """What was written is what is taken: neither made another type nor another number."""
    if isinstance(written, bool) or written is None:
        assert taken is written
    elif isinstance(written, int | float):
        assert taken in (written, float(written))
        assert not isinstance(taken, bool | str)
    elif isinstance(written, str) and not isinstance(taken, dict):
        # a value with a unit is kept in its canonical form
        assert isinstance(taken, str) or (
            isinstance(taken, int) and written[:1].isdigit() and written[-1:].isalpha()
        )


def check_problems(problems: tuple[Problem, ...], text: str) -> None:
    """Every problem points into the text, and can be shown in every format."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for problem in problems:
        origin = problem.origin
        assert origin is not None, problem
        assert 1 <= origin.line <= len(lines), problem
        assert 1 <= origin.column <= origin.end_column <= len(lines[origin.line - 1]) + 2, problem
        assert len(problem.message) < 1000, problem
    for output_format in ("text", "json", "github", "sarif"):
        render_problems(problems, output_format=output_format)  # type: ignore[arg-type]


def run(cases: list[Mutant], folder: Path) -> dict[str, int]:
    """Checks all cases and counts the outcomes; a failure names its case."""
    counts = {"refused": 0, "taken": 0}
    for mutant in cases:
        try:
            counts[check(mutant, folder)] += 1
        except Exception as error:
            raise AssertionError(
                f"{mutant.what}: {type(error).__name__}: {error}\n{mutant.text[:2000]}"
            ) from error
    print(counts)
    return counts


def test_a_changed_recipe_is_refused_at_its_place_or_means_what_it_says(tmp_path: Path) -> None:
    counts = run(Random(0).sample(list(mutants()), 600), tmp_path)
    assert min(counts.values()) > 10


@pytest.mark.slow
def test_more_changed_recipes(tmp_path: Path) -> None:
    run(Random(1).sample(list(mutants()), 6000), tmp_path)


@pytest.mark.endurance
def test_every_change_of_every_shipped_recipe(tmp_path: Path) -> None:
    run(list(mutants()), tmp_path)
