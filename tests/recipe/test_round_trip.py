"""Random valid recipes over the whole schema: however one is written, it is the same run, and what
was saved is what ran."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recipe.conftest import draw_recipes
from titanrun.cli import diff_config, show
from titanrun.config.base import dump_config
from titanrun.config.fields import find_field_metadata
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import DataPath, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_flow_yaml, to_toml, to_yaml
from titanrun.config.tree import format_path, to_plain_data
from titanrun.recipe.reference.schema_topics import get_topics
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe

Data = dict[str, Any]
FEW, SOME, MANY = 180, 260, 600


def write(folder: Path, text: str, *, suffix: str = ".yaml") -> str:
    """A recipe in a file whose stem is always the same, since a recipe without a name takes it."""
    file = folder / f"recipe{suffix}"
    file.write_text(text, encoding="utf-8", newline="")
    return str(file)


def leaves(data: Any, path: DataPath = ()) -> Iterator[tuple[DataPath, Any]]:
    """Everything below mappings with its path; lists stay whole."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, data


def keys(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key, without the indexes of lists."""
    for item in data if isinstance(data, list) else []:
        yield from keys(item, path)
    for key, value in data.items() if isinstance(data, dict) else ():
        yield (*path, key)
        yield from keys(value, (*path, key))


def built_fields() -> set[tuple[str, ...]]:
    """The path of every field that has an effect, in the section where it is met first."""
    found = set()
    for topic in get_topics():
        for name, field in ({} if topic.is_slot else topic.config.model_fields).items():
            setting = find_field_metadata(field)
            # hardly any random recipe of kind rl agrees with itself
            if (
                setting is not None
                and setting.not_built is None
                and name != "name"
                and "rl" not in topic.keys
            ):
                found.add((*topic.keys, name))
    return found


def resolve(folder: Path, data: Data) -> Resolved:
    return resolve_recipe(write(folder, to_yaml(escape_references(data))), environment={})


@pytest.fixture(scope="module")
def some_recipes(recipes: st.SearchStrategy[Data]) -> list[Data]:
    return draw_recipes(recipes, FEW)


@pytest.fixture(scope="module")
def resolved_recipes(
    some_recipes: list[Data], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Data, Resolved]]:
    """Each recipe and what it resolves to, which all checks compare with."""
    folder = tmp_path_factory.mktemp("resolved")
    return [(data, resolve(folder, data)) for data in some_recipes]


def check_canonical_bytes(data: Data, resolved: Resolved) -> None:
    for written in (
        to_yaml(escape_references(data)),
        resolved.text,
        to_yaml(dump_config(resolved.recipe)),
    ):
        body = written.partition("\n")[2] if written.startswith("#") else written
        tree = read_source_text(SourceText("recipe.yaml", written), "yaml")
        assert to_yaml(to_plain_data(tree)) == body


def check_every_spelling(data: Data, expected: str, folder: Path) -> None:
    written = escape_references(data)
    toml = write(folder, to_toml(written), suffix=".toml")
    assert resolve_recipe(toml, environment={}).text == expected
    flow = write(folder, f"{to_flow_yaml(written)}\r\n")
    assert resolve_recipe(flow, environment={}).text == expected
    base = write(folder, "x-nothing: here\n")
    # with and without dashes in turn
    overrides = [
        f"{'--' * (number % 2)}{format_path(path)}={to_flow_yaml(value)}"
        for number, (path, value) in enumerate(leaves(written))
    ]
    assert resolve_recipe(base, overrides, environment={}).text == expected


def check_resolved_is_clean(text: str, folder: Path) -> None:
    again = resolve_recipe(write(folder, text), environment={})
    assert again.warnings == ()
    assert again.text == text


def check_diff_is_empty(
    data: Data, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "resolved.yaml").write_text(text, encoding="utf-8", newline="")
    assert (
        diff_config.run([write(folder, to_yaml(escape_references(data))), str(folder / "run")]) == 0
    )
    assert capsys.readouterr().out == ""


def check_minimal_is_the_same_run(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert show.run([write(folder, text), "--minimal"]) == 0
    assert resolve_recipe(write(folder, capsys.readouterr().out), environment={}).text == text


def test_writing_what_was_read_gives_the_same_bytes(
    resolved_recipes: list[tuple[Data, Resolved]],
) -> None:
    for data, resolved in resolved_recipes:
        check_canonical_bytes(data, resolved)


def test_yaml_toml_and_overrides_resolve_to_the_same_bytes(
    resolved_recipes: list[tuple[Data, Resolved]], tmp_path: Path
) -> None:
    for data, resolved in resolved_recipes:
        check_every_spelling(data, resolved.text, tmp_path)


def test_a_resolved_recipe_has_no_problems_and_resolves_to_itself(
    resolved_recipes: list[tuple[Data, Resolved]], tmp_path: Path
) -> None:
    for _, resolved in resolved_recipes:
        check_resolved_is_clean(resolved.text, tmp_path)


def test_a_recipe_and_its_resolved_form_do_not_differ(
    resolved_recipes: list[tuple[Data, Resolved]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for data, resolved in resolved_recipes[::2]:
        check_diff_is_empty(data, resolved.text, tmp_path, capsys)


def test_the_minimal_form_of_a_run_is_the_same_run(
    resolved_recipes: list[tuple[Data, Resolved]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _, resolved in resolved_recipes[::5]:
        check_minimal_is_the_same_run(resolved.text, tmp_path, capsys)


def test_the_recipes_drawn_write_most_fields_of_the_schema(some_recipes: list[Data]) -> None:
    written = {place for data in some_recipes for place in keys(data)}
    lacking = {place for place in built_fields() if place not in written}
    assert len(lacking) < len(built_fields()) / 2, (len(lacking), sorted(lacking))


def check_all(data: Data, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolved = resolve(folder, data)
    check_canonical_bytes(data, resolved)
    check_every_spelling(data, resolved.text, folder)
    check_resolved_is_clean(resolved.text, folder)
    check_diff_is_empty(data, resolved.text, folder, capsys)
    check_minimal_is_the_same_run(resolved.text, folder, capsys)


@pytest.mark.slow
def test_more_recipes_keep_all_of_these_promises(
    recipes: st.SearchStrategy[Data], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in draw_recipes(recipes, SOME):
        check_all(data, tmp_path, capsys)


@pytest.mark.endurance
def test_many_recipes_keep_all_of_these_promises(
    recipes: st.SearchStrategy[Data], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
    @given(recipes)
    def check(data: Data) -> None:
        check_all(data, tmp_path, capsys)

    check()
