"""Which choices a slot offers."""

from typing import ClassVar, Literal

import pytest

from titanrun.config import registry
from titanrun.config.base import ComponentConfig


class Shape(ComponentConfig):
    slot: ClassVar = "shape"
    is_slot: ClassVar = True


class Round(Shape):
    builds: ClassVar = "shapes:Round"
    name: Literal["round"] = "round"


class Square(Shape):
    builds: ClassVar = "shapes:Square"
    name: Literal["square"] = "square"


def test_a_plug_in_of_another_recipe_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_hidden_packages", set())
    monkeypatch.setattr(Square, "__module__", "plug_in_of_another.shapes")
    assert registry.get_choice_names(Shape) == ["round", "square"]
    registry.hide_packages({"plug_in_of_another"})
    assert registry.get_choice_names(Shape) == ["round"]
    # until a recipe lists it
    registry.hide_packages({"plug_in_of_a_third"})
    assert registry.get_choice_names(Shape) == ["round", "square"]
