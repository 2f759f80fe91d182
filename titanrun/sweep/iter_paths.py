"""Paths and values of the sections of a sweep file."""

from collections.abc import Iterator, Mapping

from titanrun.config.problems import problem_error
from titanrun.config.tree import Node

EXAMPLE = "optimizer.lr: [1.0e-3, 2.0e-3]"
Point = Mapping[str, Node]


def iter_path_nodes(
    node: Node, start: str = "", *, are_draws: bool = False
) -> Iterator[tuple[str, Node]]:
    """Yield dotted paths, at any nesting depth, with their nodes."""
    assert isinstance(node.value, dict)
    for key, below in node.value.items():
        path = f"{start}.{key}" if start else key
        is_draw = (
            are_draws
            and isinstance(below.value, dict)
            and not any(isinstance(item.value, dict) for item in below.value.values())
        )
        if isinstance(below.value, dict) and below.value and not is_draw:
            yield from iter_path_nodes(below, path, are_draws=are_draws)
        else:
            yield path, below


def check_mapping(name: str, node: Node) -> None:
    """Raise ProblemsFound if a section is not a mapping or is empty."""
    if not isinstance(node.value, dict) or not node.value:
        raise problem_error(
            "wrong-type",
            f"{name} maps paths to values",
            path=(name,),
            origin=node.origin,
            hint=f"write {EXAMPLE}",
        )
