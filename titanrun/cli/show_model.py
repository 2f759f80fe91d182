"""What `titanrun show --model` prints: the modules of a model, and what the converters made of each."""

import json
from collections.abc import Iterator
from typing import Any

from titanrun.launch.ask_worker import ask_worker
from titanrun.recipe.resolve import Resolved


def model_lines(resolved: Resolved, *, as_json: bool) -> Iterator[str]:
    """A line a module, or a JSON object a module. Raises ProblemsFound where the model cannot be built."""
    answer = ask_worker("show_model", resolved, ranks=1, what="building the model")
    if as_json:
        for module in answer["modules"]:
            yield json.dumps(module, ensure_ascii=False) + "\n"
        return
    rows = [
        (module["name"], module["class"], shapes_text(module["shapes"]), fate(module))
        for module in answer["modules"]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, kind, shapes, what in rows:
        yield (
            f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {shapes:<{widths[2]}}  {what}".rstrip()
            + "\n"
        )


def shapes_text(shapes: dict[str, list[int]]) -> str:
    """`256 x 688`, of several weights with their names."""
    texts = {name: " x ".join(map(str, shape)) for name, shape in shapes.items()}
    return (
        next(iter(texts.values()))
        if len(texts) == 1
        else ", ".join(f"{name} {text}" for name, text in texts.items())
    )


def fate(module: dict[str, Any]) -> str:
    """What converters made of a module: `float8_linear: float8 tensorwise`, or who left it and why."""
    if module["taken"]:
        return str(module["taken"])
    return "; ".join(f"left by {name}: {why}" for name, why in module["left"].items())
