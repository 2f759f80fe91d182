"""A key that was called otherwise once is read under its new name, with a warning at the old
one."""

from typing import Literal

import pytest

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import component, numerics, section
from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.renames import rename_former_keys, to_current_path
from titanrun.config.tree import to_plain_data
from titanrun.config.validate_tree import validate_tree


class Shape(ComponentConfig):
    slot = "shape"
    is_slot = True
    default_name = "square"


class Square(Shape):
    name: Literal["square"] = numerics("square")
    builds = "nowhere:square"
    side: int = numerics(1, was=("edge", "len"))
    """Length of a side."""


class Circle(Shape):
    name: Literal["circle"] = numerics("circle")
    builds = "nowhere:circle"
    radius: int = numerics(1)
    """Half its width."""


class Paper(Config):
    size: int = numerics(1, was=("format",))
    """How large."""


class Drawing(Config):
    paper: Paper = section(Paper, was=("page",))
    shape: Shape = component(Shape)
    others: tuple[Shape, ...] = component(())


def read(
    text: str, file_format: Literal["yaml", "toml"] = "yaml"
) -> tuple[Drawing | None, list[str]]:
    tree = read_source_text(SourceText(f"drawing.{file_format}", text), file_format)
    found = rename_former_keys(Drawing, tree, to_plain_data(tree))
    checked = validate_tree(Drawing, found.tree)
    return checked.config, [
        f"{problem.label} {problem.origin}: {problem.message}"
        for problem in (*found.problems, *checked.problems)
    ]


@pytest.mark.parametrize(
    ("text", "file_format", "place"),
    [
        ("shape: {edge: 5}\n", "yaml", "drawing.yaml:1:9"),
        ("shape:\n  len: 5\n", "yaml", "drawing.yaml:2:3"),
        ("[shape]\nedge = 5\n", "toml", "drawing.toml:2:1"),
        ("shape.edge = 5\n", "toml", "drawing.toml:1:7"),
    ],
)
def test_a_former_name_is_read_with_a_warning_at_its_place(
    text: str, file_format: Literal["yaml", "toml"], place: str
) -> None:
    config, problems = read(text, file_format)
    assert config == Drawing(shape=Square(side=5))
    former = "len" if "len" in text else "edge"
    assert problems == [f"deprecated {place}: '{former}' was renamed to 'side'"]


def test_sections_and_lists_of_components_are_searched_too() -> None:
    config, problems = read("page: {format: 3}\nothers: [circle, {name: square, edge: 2}]\n")
    assert config == Drawing(paper=Paper(size=3), others=(Circle(), Square(side=2)))
    assert sorted(problem.split(": ")[1] for problem in problems) == [
        "'edge' was renamed to 'side'",
        "'format' was renamed to 'size'",
        "'page' was renamed to 'paper'",
    ]


def test_both_names_are_a_conflict_that_shows_both_places() -> None:
    tree = read_source_text(SourceText("drawing.yaml", "shape: {edge: 5, side: 6}\n"), "yaml")
    (problem,) = rename_former_keys(Drawing, tree, to_plain_data(tree)).problems
    assert (problem.code, str(problem.origin), problem.hint) == (
        "conflict",
        "drawing.yaml:1:9",
        "remove 'edge'",
    )
    assert [str(related.origin) for related in problem.related] == ["drawing.yaml:1:18"]


def test_a_former_name_means_nothing_in_another_component() -> None:
    config, problems = read("shape: {name: circle, edge: 5}\n")
    assert config is None
    assert problems[0].startswith("unknown-key drawing.yaml:1:23")


def test_paths_may_use_former_names() -> None:
    data = {"others": [{"name": "circle"}, {"name": "square"}]}
    assert to_current_path(Drawing, ("page", "format"), {}) == ("paper", "size")
    assert to_current_path(Drawing, ("others", 1, "edge"), data) == ("others", 1, "side")
    assert to_current_path(Drawing, ("others", 0, "edge"), data) == ("others", 0, "edge")
