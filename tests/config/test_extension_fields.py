"""Fields that plug-ins add to sections, and how sections are described."""

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from titanrun.components.optimizers.config import AdamWConfig
from titanrun.config.base import Config
from titanrun.config.describe_field import describe_fields
from titanrun.config.extension_fields import (
    ExtensionFields,
    extend_config_class,
    find_extension_problems,
)
from titanrun.config.fields import numerics, section
from titanrun.config.types import PositiveInt


class Inner(Config):
    """The section that is added to."""

    name: str = numerics("x")
    """A field like any other: a section has no choices."""


class Outer(Config):
    """A section around it."""

    inner: Inner = section(Inner)
    maybe: Inner | None = numerics(None)
    """A section that may be left out."""


class Top(Config):
    """All of it."""

    outer: Outer = section(Outer)


class Added(ExtensionFields):
    """A field of a plug-in."""

    adds_to: ClassVar = "outer.inner"
    depth: PositiveInt = numerics(3)
    """How deep."""


def test_an_added_field_has_its_default_its_type_and_its_place_only() -> None:
    extended: Any = extend_config_class(
        Top, [(("outer", "inner"), Added), (("outer", "maybe"), Added)]
    )
    read = extended.model_validate({"outer": {"inner": {"name": "y", "depth": 5}}})
    assert (read.outer.inner.name, read.outer.inner.depth, read.outer.maybe) == ("y", 5, None)
    assert extended.model_validate({}).outer.inner.depth == 3
    assert extended.model_validate({"outer": {"maybe": {}}}).outer.maybe.depth == 3
    for wrong in ({"outer": {"inner": {"depth": 0}}}, {"outer": {"depth": 1}}, {"depth": 1}):
        with pytest.raises(ValidationError):
            extended.model_validate(wrong)
    with pytest.raises(ValidationError):
        Top.model_validate({"outer": {"inner": {"depth": 5}}})
    assert list(find_extension_problems(Top, Added)) == []
    assert list(find_extension_problems(extended, Added)) == [
        "adds outer.inner.depth, which already exists"
    ]


def test_the_name_is_the_title_of_a_component_and_a_field_of_a_section() -> None:
    assert [field.name for field in describe_fields(Inner)] == ["name"]
    of_component = [field.name for field in describe_fields(AdamWConfig)]
    assert "name" not in of_component and "lr" in of_component
