"""Output of `titanrun show --model`: the modules of a model and their conversions."""

import json
from collections.abc import Iterator
from typing import Any

from titanrun.launch.worker_query import query_worker
from titanrun.recipe.resolving.resolve import Resolved


def iter_module_lines(resolved: Resolved, *, as_json: bool) -> Iterator[str]:
    """Yield one line or JSON object per module.

    Raises ProblemsFound if the model cannot be built.
    """
    answer = query_worker("show_model", resolved, ranks=1, description="building the model")
    if as_json:
        for module in answer["modules"]:
            yield json.dumps(module, ensure_ascii=False) + "\n"
        return
    rows = [
        (
            module["name"],
            module["class"],
            format_weight_shapes(module["shapes"]),
            format_conversion(module),
        )
        for module in answer["modules"]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, kind, shapes, what in rows:
        yield (
            f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {shapes:<{widths[2]}}  {what}".rstrip()
            + "\n"
        )


def format_weight_shapes(shapes: dict[str, list[int]]) -> str:
    """Format weight shapes: `256 x 688`, with names if there are several weights."""
    texts = {name: " x ".join(map(str, shape)) for name, shape in shapes.items()}
    return (
        next(iter(texts.values()))
        if len(texts) == 1
        else ", ".join(f"{name} {text}" for name, text in texts.items())
    )


def format_conversion(module: dict[str, Any]) -> str:
    """Format the conversions of a module: `float8_linear: float8 tensorwise`.

    For an unconverted module, name the converters that skipped it and why.
    """
    if module["taken"]:
        return str(module["taken"])
    return "; ".join(f"skipped by {name}: {why}" for name, why in module["left"].items())
