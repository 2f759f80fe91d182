"""Description of what a recipe generates with, to compare those of a trainer and a generator."""

from typing import Any

from titanrun.config.base import dump_config, dump_value
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe

# of the other sections nothing counts
WHOLE_SECTIONS = ("model", "tokenizer", "converters")
FIELDS = {
    "training": ("dtype", "mixed_precision_param", "seq_len", "local_batch_size"),
    "debug": ("seed", "deterministic"),
    "rl": (
        *("environment", "rewards", "rollout", "schedule", "generator", "sampling"),
        "batch_invariant",
    ),
}
ABSENT = "absent"


def describe_generation(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a generator reads, as plain data."""
    described = {name: dump_value(getattr(recipe, name)) for name in WHOLE_SECTIONS}
    for section, names in FIELDS.items():
        values = dump_config(getattr(recipe, section))
        described[section] = {name: values[name] for name in names}
    assert recipe.rl is not None, "a rule requires it"
    described["rl"]["sync"] = {"kv_on_update": recipe.rl.sync.kv_on_update}
    return described


def find_difference(own: Any, other: Any, path: tuple[str | int, ...] = ()) -> str | None:
    """Return the first setting in which two descriptions differ, with both values, or None."""
    if isinstance(own, dict) and isinstance(other, dict):
        for name, value in own.items():
            found = find_difference(value, other.get(name, ABSENT), (*path, name))
            if found is not None:
                return found
        if len(own) == len(other):
            return None
    if isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for index, (mine, theirs) in enumerate(zip(own, other, strict=True)):
            found = find_difference(mine, theirs, (*path, index))
            if found is not None:
                return found
        return None
    if own == other:
        return None
    return f"{format_path(path)} is {other!r} for the trainer and {own!r} for the generator"
