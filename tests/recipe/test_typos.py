"""One wrong keystroke in a key or a name: the right word is the first suggestion in 99 of 100
cases, counted."""

import string
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from titanrun.config import registry
from titanrun.config.compose import compose
from titanrun.config.fields import find_field_metadata
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, SourceText
from titanrun.config.suggest import edit_distance
from titanrun.config.tree import build_tree, format_path, to_plain_data
from titanrun.config.type_introspection import (
    find_item_type,
    find_value,
    get_literal_values,
    is_slot,
    unwrap_annotation,
)
from titanrun.config.validate_tree import validate_tree
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import load_flavors
from titanrun.recipe import builtins
from titanrun.recipe.editing.synonym_table import SYNONYMS
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.reference.schema_topics import FieldLocation, find_field_locations, get_topics
from titanrun.recipe.resolving.multi_stage import get_stages, select_stage
from titanrun.recipe.resolving.resolve import resolve_recipe

NOWHERE = Origin(SourceText("recipe.yaml", ""), 1, 1, 1)
LETTERS = string.ascii_lowercase + "_"
WANTED = 0.99
Case = tuple[str, str, Callable[[], str | None]]
"""Where, the word that was meant, and what is suggested for a typo of it."""


def typos(word: str) -> list[str]:
    """Every word that one deletion, swap of neighbours, replacement or insertion away makes of
    `word`."""
    cuts = range(len(word))
    found = {word[:at] + word[at + 1 :] for at in cuts}
    found |= {word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :] for at in cuts}
    found |= {word[:at] + letter + word[at + 1 :] for at in cuts for letter in LETTERS}
    found |= {word[:at] + letter + word[at:] for at in range(len(word) + 1) for letter in LETTERS}
    return sorted(found - {word, ""})


def changed(data: Any, path: DataPath, key: str) -> Any:
    """A copy of `data` in which the key at the end of `path` is called `key`."""
    step, *rest = path
    if isinstance(data, list):
        return [
            changed(item, tuple(rest), key) if index == step else item
            for index, item in enumerate(data)
        ]
    if rest:
        return {
            name: changed(value, tuple(rest), key) if name == step else value
            for name, value in data.items()
        }
    return {key if name == step else name: value for name, value in data.items()}


def problems_of(data: Any) -> list[Problem]:
    """What is wrong with plain data as a recipe."""
    return list(validate_tree(Recipe, build_tree(data, NOWHERE), synonyms=SYNONYMS).problems)


def suggested_for(data: Any, path: DataPath) -> str | None:
    """The word that is suggested for the key or name at `path`."""
    return next((problem.suggestion for problem in problems_of(data) if problem.path == path), None)


def keys_of_recipe(data: Any, path: DataPath = ()) -> Iterator[DataPath]:
    """The path of every key."""
    entries = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in entries:
        if isinstance(key, str):
            yield (*path, key)
        yield from keys_of_recipe(value, (*path, key))


def key_typos(data: Any, path: DataPath, where: str) -> Iterator[Case]:
    """Every typo of one key of a recipe."""
    key = str(path[-1])
    for typo in typos(key):
        if typo not in find_value(data, path[:-1]):
            at = (*path[:-1], typo)
            yield (
                f"{where}:{format_path(path)} as {typo}",
                key,
                lambda typo=typo, at=at: suggested_for(changed(data, path, typo), at),
            )


def shipped() -> Iterator[tuple[str, Any]]:
    """Name and data of every shipped recipe, of one with stages of each of them."""
    builtins.register_builtins()
    for entry in shipped_recipes.list_shipped_recipes():
        tree = compose(str(entry.path))
        for stage in get_stages(tree) or [""]:
            mark = stage and f"#{stage}"
            yield f"{entry.name}{mark}", to_plain_data(select_stage(tree, f"{entry.path}{mark}"))


def typos_in_shipped_recipes() -> list[Case]:
    return [
        case
        for name, data in shipped()
        for path in keys_of_recipe(data)
        for case in key_typos(data, path, name)
    ]


def all_spots() -> Iterator[FieldLocation]:
    """Every field of the schema in every component that has it."""
    builtins.register_builtins()
    for topic in get_topics():
        for name in () if topic.is_slot else topic.config.model_fields:
            yield from (
                spot
                for spot in find_field_locations((*topic.keys, name))
                if spot.holder is topic.config
            )


def typos_of_schema_keys() -> list[Case]:
    return [case for spot in all_spots() for case in key_typos(written(spot), spot.path, "schema")]


def written(spot: FieldLocation) -> Any:
    """A recipe that writes the field, its own name where it is a section."""
    if spot.recipe_example is not None:
        return spot.recipe_example
    keys = tuple(step for step in spot.path if isinstance(step, str))
    inner = unwrap_annotation(spot.holder.model_fields[keys[-1]].annotation)
    return next(
        below.recipe_example
        for below in find_field_locations((*keys, next(iter(inner.model_fields))))
        if below.component == spot.component
    )


def name_typos(path: DataPath, names: list[str], write: Callable[[str], Any]) -> Iterator[Case]:
    """Every typo of each of `names` that is not as near to another one."""
    for name in names:
        for typo in typos(name):
            if all(
                other == name or edit_distance(typo.lower(), other.lower(), 1) > 1
                for other in names
            ):
                yield (
                    f"{format_path(path)}: {typo}",
                    name,
                    lambda typo=typo: suggested_for(write(typo), path),
                )


def typos_of_component_names() -> list[Case]:
    found: list[Case] = []
    for spot in all_spots():
        field = spot.holder.model_fields[spot.description.name]
        item = find_item_type(field.annotation)
        slot = item or unwrap_annotation(field.annotation)
        if is_slot(slot):
            where = (*spot.path, 0, "name") if item else (*spot.path, "name")
            found += name_typos(
                where,
                registry.get_choice_names(slot),
                lambda word, spot=spot, many=item: with_name(spot, word, many),
            )
    return found


def with_name(spot: FieldLocation, word: str, many: object) -> Any:
    """A recipe that names the component `word` in a slot."""
    return replaced(spot.recipe_example, spot.path, [{"name": word}] if many else {"name": word})


def typos_of_choices() -> list[Case]:
    found: list[Case] = []
    for spot in all_spots():
        field = spot.holder.model_fields[spot.description.name]
        words = [word for word in get_literal_values(field.annotation) if isinstance(word, str)]
        setting = find_field_metadata(field)
        if (
            words
            and spot.path[-1] != "name"
            and not (setting and setting.not_built)
            and "tuple" not in str(field.annotation)
        ):
            found += name_typos(
                spot.path,
                words,
                lambda word, spot=spot: replaced(spot.recipe_example, spot.path, word),
            )
    return found


def replaced(data: Any, path: DataPath, value: object) -> Any:
    """A copy of `data` with `value` at `path`."""
    step, *rest = path
    if isinstance(data, list):
        return [replaced(item, tuple(rest), value) if rest else value for item in data]
    return {**data, step: replaced(data[step], tuple(rest), value) if rest else value}


def typos_of_flavors(folder: Path) -> list[Case]:
    builtins.register_builtins()
    found: list[Case] = []
    for family in registry.get_choice_names(ModelConfig):
        recipe = folder / f"{family}.yaml"
        recipe.write_text(f"version: 1\nmodel: {family}\ntraining: {{dataset: tiny}}\n")
        path: DataPath = ("model", "flavor")
        cases = name_typos(path, list(load_flavors(family)), lambda word: word)
        for where, name, typo in (
            (where, name, where.partition(": ")[2]) for where, name, _ in cases
        ):
            found.append(
                (
                    f"{family} {where}",
                    name,
                    lambda recipe=str(recipe), typo=typo: flavor_suggested(recipe, typo),
                )
            )
    return found


def flavor_suggested(recipe: str, typo: str) -> str | None:
    """The flavor that is suggested for a misspelt one."""
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(recipe, [f'model.flavor="{typo}"'], environment={})
    return next(
        (
            problem.suggestion
            for problem in found.value.problems
            if problem.path == ("model", "flavor")
        ),
        None,
    )


def share_right(cases: list[Case], what: str, *, most: int | None) -> float:
    """The share of cases whose suggestion is right, of `most` cases evenly taken from all; prints
    it, and the wrong ones."""
    taken = Random(0).sample(cases, most) if most and most < len(cases) else cases
    wrong = [(where, meant, got) for where, meant, suggest in taken if (got := suggest()) != meant]
    share = 1 - len(wrong) / len(taken)
    print(
        f"{what}: {share:.2%} of {len(taken)} typos of {len(cases)} get the right word first; "
        f"not: {wrong[:20]}"
    )
    return share


def test_a_misspelt_key_of_a_shipped_recipe_gets_the_right_key_first() -> None:
    assert share_right(typos_in_shipped_recipes(), "keys of shipped recipes", most=400) >= WANTED


def test_a_misspelt_key_of_the_schema_gets_the_right_key_first() -> None:
    assert share_right(typos_of_schema_keys(), "keys of the schema", most=400) >= WANTED


def test_a_misspelt_name_of_a_component_gets_the_right_name_first() -> None:
    assert share_right(typos_of_component_names(), "names of components", most=400) >= WANTED


def test_a_misspelt_choice_gets_the_right_word_first() -> None:
    assert share_right(typos_of_choices(), "words to choose from", most=400) >= WANTED


def test_a_misspelt_flavor_gets_the_right_flavor_first(tmp_path: Path) -> None:
    assert share_right(typos_of_flavors(tmp_path), "flavors", most=300) >= WANTED


@pytest.mark.slow
def test_every_misspelt_key_of_every_shipped_recipe_and_of_the_schema() -> None:
    assert (
        share_right(typos_in_shipped_recipes(), "all keys of shipped recipes", most=None) >= WANTED
    )
    assert share_right(typos_of_schema_keys(), "all keys of the schema", most=None) >= WANTED


@pytest.mark.slow
def test_every_misspelt_name(tmp_path: Path) -> None:
    cases = [*typos_of_component_names(), *typos_of_choices(), *typos_of_flavors(tmp_path)]
    assert share_right(cases, "all names", most=None) >= WANTED
