"""Random valid recipes over the whole schema, derived from the config classes, so that a new field
is drawn from the day it is declared."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, GroupedMetadata, Gt, Le, Len, Lt, MinLen, MultipleOf
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from titanrun.components.data.config import MixtureSource
from titanrun.components.validation.config import HeldOutConfig
from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config, dump_value
from titanrun.config.fields import find_field_metadata
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.serialize import to_yaml
from titanrun.config.type_introspection import find_value, is_slot, unwrap_annotation
from titanrun.config.types import AutoOr
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import load_flavor_names
from titanrun.recipe import builtins
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe

Data = dict[str, Any]
# what YAML, TOML, JSON, references, overrides and shells give a meaning to
TRICKY = (
    "\"'\\#:,=[]{}!&*|>%@`~$.-+ "
    "\t\n\r\0\x7f\x85\u00a0\u2028\ufeff\ud7ff\uffff\U0001f600éß中\u202eab019_"
)
TRICKY_TEXTS = [
    "on",
    "010",
    "1e3",
    "${x}",
    "$${",
    "~",
    "auto",
    "true",
    " ",
    "a, b",
    "- x",
    "x: y",
    "null ",
    "...",
    "---",
    "[]",
    "{}",
    "é\u0301",
]
FLOATS = [5e-324, 1e-7, 0.1 + 0.2, 1e16, 1e22, 1.7976931348623157e308, 3e-4, 1 / 3, 1.0, 0.0, -0.0]
# values with units, and paths that stay inside of a folder
OFTEN_TAKEN = [
    "90s",
    "1.5h",
    "2h30m",
    "1d",
    "500ms",
    "1.5K",
    "500M",
    "10B",
    "4GiB",
    "512MiB",
    "1.5GB",
    "a b/é",
    "x/./y",
    1,
    7,
    1000.0,
    2**40,
]
BOUNDS = (Gt, Ge, Lt, Le, MultipleOf, MinLen, Len)
MOST_REPAIRS = 12
DATASET = ("training", "dataset")
# a whole dataset for each item of a list would leave no room for the other sections
HOLD_ONE_DATASET = (MixtureSource, HeldOutConfig)
REQUIRED = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny"},
}


def texts() -> st.SearchStrategy[str]:
    """Any text but "null", which TOML cannot tell from null."""
    anything = st.one_of(
        st.sampled_from(TRICKY_TEXTS),
        st.text(st.sampled_from(TRICKY), max_size=8),
        st.text(max_size=8),
    )
    return anything.filter(
        lambda text: text != "null" and not any("\ud800" <= letter <= "\udfff" for letter in text)
    )


def values(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Plain data that a field of this type takes."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(arguments[0], (*metadata, *arguments[1:]))
    if origin in (Union, UnionType):
        return st.one_of(
            [
                values(part, () if part is NoneType or get_origin(part) is Literal else metadata)
                for part in arguments
            ]
        )
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        items = values(arguments[0])
        return st.just([]) if items.is_empty else st.lists(items, max_size=3)
    if annotation is NoneType:
        return st.none()
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return components(annotation) if is_slot(annotation) else sections(annotation)
    plain = {
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: texts(),
    }
    return (
        numbers(annotation, metadata)
        if annotation in (int, float)
        else plain[annotation].filter(lambda value: fits(value, metadata))
    )


def numbers(kind: type, metadata: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Small numbers more often than large ones, since rules compare them; whole floats for
    integers, integers for floats."""
    small = st.integers(-1, 600)
    sizes = (
        small
        if kind is int
        else st.one_of(
            small,
            st.sampled_from(FLOATS),
            st.floats(-1, 10),
            st.floats(allow_nan=False, allow_infinity=False),
        )
    )
    large = st.one_of(sizes, st.sampled_from([2**31, 2**53, 2**63 - 1, 1000.0, 1e6]))
    return st.one_of(sizes, large).filter(lambda value: fits(value, metadata))


def fits(value: Any, metadata: tuple[Any, ...]) -> bool:
    """Whether a value keeps the bounds of its type."""
    for bound in single_bounds(metadata):
        low = (isinstance(bound, Gt) and not value > bound.gt) or (
            isinstance(bound, Ge) and not value >= bound.ge
        )
        high = (isinstance(bound, Lt) and not value < bound.lt) or (
            isinstance(bound, Le) and not value <= bound.le
        )
        short = isinstance(bound, MinLen) and len(value) < bound.min_length
        odd = isinstance(bound, MultipleOf) and value % bound.multiple_of != 0
        if low or high or short or odd:
            return False
    return True


def single_bounds(metadata: tuple[Any, ...]) -> Iterator[Any]:
    """The bounds one by one."""
    for item in metadata:
        if isinstance(item, GroupedMetadata):
            yield from item
        else:
            yield item


def is_known(metadata: tuple[Any, ...]) -> bool:
    """Whether the bounds say all about which values are taken; a validator says more."""
    return all(
        isinstance(item, (*BOUNDS, GroupedMetadata, AutoOr)) for item in single_bounds(metadata)
    )


def field_values(field: FieldInfo) -> st.SearchStrategy[Any]:
    """What a field takes. Where a function decides: its default, its examples, and of what is often
    taken that which it takes."""
    metadata = tuple(field.metadata)
    if is_known(metadata) and all(
        is_known(inner_metadata(part)) for part in get_args(field.annotation)
    ):
        return values(field.annotation, metadata)
    taken = TypeAdapter(Annotated[(field.annotation, Field(), *metadata)])
    known = [value for value in (*(field.examples or []), *OFTEN_TAKEN) if takes(taken, value)]
    if not field.is_required():
        known.append(dump_value(field.get_default(call_default_factory=True, validated_data={})))
    texts_taken = texts().map(lambda text: text if takes(taken, text) else known[0])
    return st.one_of(
        st.sampled_from(known),
        texts_taken if unwrap_annotation(field.annotation) is str else st.nothing(),
    )


def takes(adapter: TypeAdapter[Any], value: object) -> bool:
    """Whether a value is valid."""
    try:
        adapter.validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
    except ValidationError:
        return False
    return True


def inner_metadata(annotation: Any) -> tuple[Any, ...]:
    """The metadata inside of Annotated."""
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def sections(config: type[Config], **own: st.SearchStrategy[Any]) -> st.SearchStrategy[Data]:
    """A mapping with some or all fields of a config, of which those without an implementation are
    left out."""
    fields = {
        name: field
        for name, field in config.model_fields.items()
        if name != "name" or not issubclass(config, ComponentConfig)
    }
    built = {
        name: field
        for name, field in fields.items()
        if (setting := find_field_metadata(field)) is None or setting.not_built is None
    }
    if config in HOLD_ONE_DATASET:
        own = {"dataset": st.just("tiny"), **own}
    drawn = {
        name: own[name] if name in own else field_values(field) for name, field in built.items()
    }
    return mappings(drawn, frozenset(name for name, field in built.items() if field.is_required()))


@st.composite
def mappings(
    draw: st.DrawFn, fields: dict[str, st.SearchStrategy[Any]], required: frozenset[str]
) -> Data:
    """Some of the fields, or nearly all."""
    share = draw(st.sampled_from((2, 5, 9)))
    return {
        name: draw(values)
        for name, values in fields.items()
        if name in required or draw(st.integers(0, 9)) < share
    }


@cache
def components(slot: Any) -> st.SearchStrategy[Any]:
    """A choice of a slot: a mapping with its name, or the name alone where it needs no more. A slot
    without choices takes none.

    A component may hold others of its own slot, as a mixture of datasets does.
    """
    return st.deferred(
        lambda: st.one_of(
            [component(name, choice) for name, choice in registry.load_choices(slot).items()]
            or [st.nothing()]
        )
    )


def component(name: str, choice: type[Config]) -> st.SearchStrategy[Any]:
    """One choice of a slot."""
    own = (
        {"flavor": st.sampled_from(load_flavor_names(choice))}
        if issubclass(choice, ModelConfig)
        else {}
    )
    whole = sections(choice, **own).map(lambda fields: {"name": name, **fields})
    needs_more = (
        any(field.is_required() for key, field in choice.model_fields.items() if key != "name")
        or own
    )
    return whole if needs_more else st.one_of(st.just(name), whole)


@st.composite
def valid_recipes(draw: st.DrawFn, folder: Path) -> Data:
    """Valid recipes: drawn field by field, then relieved of what does not go together."""
    data = repaired(draw(drafts()), folder)
    assume(data is not None)
    assert data is not None
    return data


@cache
def drafts() -> st.SearchStrategy[Data]:
    """Recipes in which every field is valid by itself."""
    builtins.register_builtins()
    # what the other kinds need, hardly any random recipe has
    kinds = st.sampled_from(["pretrain"] * 9 + ["sft", "rl", "eval"])
    return sections(Recipe, plugins=st.just([]), kind=kinds)


def repaired(data: Data, folder: Path) -> Data | None:
    """The recipe without what its problems are about, first the values, at last the sections; None
    where that does not end."""
    file = folder / "draft.yaml"
    for attempt in range(MOST_REPAIRS):
        file.write_text(to_yaml(escape_references(data)), encoding="utf-8", newline="")
        problems = problems_of(file)
        if not problems:
            return data
        for problem in problems:
            data = (
                relieved(data, problem)
                if attempt < MOST_REPAIRS // 2
                else without_sections(data, problem)
            )
    return None


def problems_of(file: Path) -> list[Problem]:
    """Errors, and warnings about settings that have an effect."""
    try:
        return [
            problem
            for problem in resolve_recipe(str(file), environment={}).warnings
            if problem.code != "no-effect"
        ]
    except ProblemsFound as found:
        return list(found.problems)


def relieved(data: Data, problem: Problem) -> Data:
    """The recipe without the value that a problem points at; a model that lacks a size gets a
    flavor."""
    if problem.code == "missing-key" and problem.path[0] == "model" and "model" in data:
        family = registry.load_choice(ModelConfig, data["model"]["name"])
        return {**data, "model": {**data["model"], "flavor": load_flavor_names(family)[0]}}
    places = [problem.path, *(related.path for related in problem.related)]
    place = next(
        (path for path in places if path and find_value(data, path) is not None), problem.path
    )
    while len(place) > 1 and find_value(data, place[:-1]) is None:
        place = place[:-1]
    return (
        without_sections(data, problem)
        if len(place) == 1 or place[:2] == DATASET
        else dropped(data, place)
    )


def without_sections(data: Data, problem: Problem) -> Data:
    """The recipe without the sections that a problem names, or with the smallest ones where it
    needs them."""
    for path in (problem.path, *(related.path for related in problem.related)):
        data = {key: value for key, value in data.items() if key not in path[:1]}
    return {**REQUIRED, **data}


def dropped(data: Any, path: DataPath) -> Any:
    """A copy of `data` without what stands at `path`; the name of a component goes with the
    component, a list goes whole."""
    step, *rest = path
    if not isinstance(data, dict):
        return data
    inner = data.get(step)
    if not rest or rest == ["name"] or not isinstance(inner, dict):
        return {key: value for key, value in data.items() if key != step}
    return {**data, step: dropped(inner, tuple(rest))}


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> st.SearchStrategy[Data]:
    """Random valid recipes as plain data."""
    return valid_recipes(tmp_path_factory.mktemp("drafts"))


def draw_recipes(recipes: st.SearchStrategy[Data], count: int) -> list[Data]:
    """So many of them, the same ones in every run."""
    # without torch, a process with transformers is started for each of its models
    import_module("torch")
    drawn: list[Data] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(recipes)
    def keep(data: Data) -> None:
        drawn.append(data)

    keep()
    return drawn
