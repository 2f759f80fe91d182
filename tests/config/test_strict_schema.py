from typing import Any, ClassVar, Literal, Self

import pytest
from pydantic import ValidationError, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig, Config, dump_config
from titanrun.config.fields import bookkeeping, component, find_field_metadata, numerics, section
from titanrun.config.types import (
    OrAuto,
    PositiveFloat,
    PositiveInt,
    validate_file_name_prefix,
)


class Inner(Config):
    width: OrAuto[PositiveInt] = numerics("auto")


class Paint(ComponentConfig):
    slot: ClassVar = "paint"
    is_slot: ClassVar = True
    default_name: ClassVar = "red"


class Red(Paint):
    name: Literal["red"] = numerics("red")
    builds: ClassVar = "builtins:dict"
    shade: PositiveFloat = numerics(1.0)


class Outer(Config):
    version: Literal[1] = bookkeeping()
    count: int = numerics(1, unit="things")
    share: float = numerics(0.5)
    flag: bool = numerics(False)
    text: str = bookkeeping("")
    numbers: tuple[int, ...] = numerics(())
    inner: Inner = section(Inner)
    paint: Paint = component(Paint)
    paints: tuple[Paint, ...] = component(())
    maybe: OrAuto[Paint] | None = component("auto")


def read(**fields: Any) -> Outer:
    return Outer.model_validate({"version": 1, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"version": True},
        {"version": 1.0},
        {"version": "1"},
        {"count": True},
        {"count": "3"},
        {"count": 1.5},
        {"count": 2**63},
        {"count": 1e300},
        {"share": "0.5"},
        {"share": True},
        {"share": float("nan")},
        {"share": float("inf")},
        {"flag": 1},
        {"flag": "true"},
        {"text": 3},
        {"text": None},
        {"numbers": "12"},
        {"numbers": [1, "2"]},
        {"numbers": 3},
        {"inner": {"width": "Auto"}},
        {"inner": {"width": None}},
        {"inner": None},
        {"paint": "blue"},
        {"paint": {"name": "red", "shade": 0}},
        {"paint": {"shade": 1, "gloss": 2}},
        {"paint": ["red"]},
        {"paints": "red"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_nothing_is_coerced_or_ignored(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(**fields)


def test_whole_floats_and_lists_are_what_yaml_means_by_them() -> None:
    config = read(count=1e6, share=1, numbers=[1, 2.0], inner={"width": 3e2})
    assert (config.count, config.share, config.numbers, config.inner.width) == (
        1_000_000,
        1.0,
        (1, 2),
        300,
    )
    assert [type(config.count), type(config.share)] == [int, float]


def test_a_component_is_a_bare_name_a_mapping_or_its_default() -> None:
    assert read(paint="red") == read(paint={"name": "red"}) == read(paint={}) == read()
    assert [paint.shade for paint in read(paints=["red", {"shade": 2}]).paints] == [1.0, 2.0]
    assert (read(maybe=None).maybe, read(maybe="auto").maybe, read(maybe="red").maybe) == (
        None,
        "auto",
        Red(),
    )


def test_a_component_that_is_defined_late_is_found() -> None:
    class Late(Paint):
        name: Literal["late"] = numerics("late")
        builds: ClassVar = "builtins:dict"

    assert isinstance(read(paint="late").paint, Late)


def test_error_locations_are_data_paths() -> None:
    with pytest.raises(ValidationError) as caught:
        read(paints=["red", {"name": "red", "shade": "x"}], maybe={"shade": -1}, inner={"width": 0})
    assert [error["loc"] for error in caught.value.errors()] == [
        ("inner", "width"),
        ("paints", 1, "shade"),
        ("maybe", "shade"),
    ]


def test_what_is_dumped_reads_back_equal() -> None:
    config = read(count=3, numbers=[1], paints=["red"], maybe=None)
    assert Outer.model_validate(dump_config(config)) == config


def test_configs_are_frozen_and_copies_are_refused() -> None:
    config = read()
    with pytest.raises(ValidationError):
        config.count = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.model_copy(update={"count": "x"})


@pytest.mark.parametrize("annotation", [Any, int | str, list[int], dict[str, int]], ids=str)
def test_a_config_cannot_hold_what_is_not_data(annotation: Any) -> None:
    with pytest.raises(TypeError, match="cannot hold"):

        class Loose(Config):
            field: annotation

        Loose.model_validate({"field": 1})


def test_a_field_declares_its_unit_and_change_class() -> None:
    setting = find_field_metadata(Outer.model_fields["count"])
    assert setting is not None
    assert (setting.change, setting.unit, setting.resume) == ("numerics", "things", False)
    assert find_field_metadata(Outer.model_fields["inner"]) is None


def test_a_config_with_a_check_of_its_own_is_as_strict() -> None:
    class Checked(Config):
        count: int = numerics(1, unit="things")

        @model_validator(mode="after")
        def is_small(self) -> Self:
            assert self.count < 10, "too many"
            return self

    assert Checked.model_validate({"count": 3}).count == 3
    for count in ("3", True, 10):
        with pytest.raises(ValidationError):
            Checked.model_validate({"count": count})


def test_the_prefix_of_a_file_name_has_a_length() -> None:
    longest = "é" * 100
    assert validate_file_name_prefix(longest) == longest
    for text in (longest + "x", "../traces", "a\nb"):
        with pytest.raises(PydanticCustomError):
            validate_file_name_prefix(text)
