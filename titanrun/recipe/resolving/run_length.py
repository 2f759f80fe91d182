"""Length of a run (exactly one of steps, tokens and epochs), and values derived from it.

Two lengths in one text are a conflict. In different texts the one nearest the user counts, as
everywhere: an override before the given file, that before what it extends. So `training.tokens=20B`
lengthens a recipe that sets `steps`, and the file stays as it is.

In a resolved recipe, tokens become steps, since the size of a step is known. Epochs stay, since the
number of sequences is only known from the data. Then `steps` and the values derived from it are
null until the worker has opened the data.
"""

import math
from dataclasses import replace
from typing import Any

from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, Origin, Problem, RelatedLocation
from titanrun.config.tree import Node, find_node, remove_paths
from titanrun.config.types import AUTO
from titanrun.recipe.recipe import Recipe

DEFAULT_STEPS = 10_000
USUAL_STEPS = 10
"""Steps from which a run of few sequences learns something."""
LOCAL_BATCH_SIZE = "training.local_batch_size"
STEPS = ("training", "steps")
WARMUP = ("lr_scheduler", "warmup_steps")
WARMUP_RATIO = ("lr_scheduler", "warmup_ratio")
LENGTH_FIELDS = ("steps", "tokens", "epochs")
# fields derived from training.steps unless written
FIELDS_FROM_STEPS: tuple[tuple[str, str], ...] = (
    ("lr_scheduler", "warmup_steps"),
    ("lr_scheduler", "total_steps"),
)


def keep_nearest_length(tree: Node) -> Node:
    """Return the tree with only the length nearest the user.

    Two at the same distance are kept, so that the rule one-length reports them.
    """
    written = find_written_lengths(tree)
    if len(written) < 2:
        return tree
    nearest = min(get_extends_distance(node.origin) for _, node in written)
    gone = [(path, node) for path, node in written if get_extends_distance(node.origin) > nearest]
    if not gone:
        return tree
    tree = record_shadowed_lengths(
        remove_paths(tree, {path for path, _ in gone}), tuple(node.origin for _, node in gone)
    )
    # in a resolved recipe with epochs, the derived fields are null
    followed = (("training", "steps"), *FIELDS_FROM_STEPS)
    return remove_paths(
        tree,
        {
            path
            for path in followed
            if (node := find_node(tree, path)) is not None and node.value is None
        },
    )


def keep_nearest_warmup(tree: Node) -> Node:
    """Return the tree with only the warmup nearest the user: warmup_steps or warmup_ratio.

    Two at the same distance are kept, so that the rule one-warmup reports them.
    """
    written = [
        (path, node)
        for path in (WARMUP, WARMUP_RATIO)
        if (node := find_node(tree, path)) is not None and node.value not in (None, AUTO)
    ]
    nearest = min((get_extends_distance(node.origin) for _, node in written), default=0)
    return remove_paths(
        tree, {path for path, node in written if get_extends_distance(node.origin) > nearest}
    )


def shorten_warmup(tree: Node) -> tuple[Node, list[Problem]]:
    """Return the tree with a warmup that fits into the steps of an override, and a warning.

    A warmup of a file that exceeds them becomes `auto`: a short trial of a recipe needs no second
    override. Within files both are a conflict.
    """
    steps, warmup = (find_node(tree, path) for path in (STEPS, WARMUP))
    if (
        steps is None
        or warmup is None
        or steps.via != "override"
        or warmup.via == "override"
        or type(steps.value) is not int
        or type(warmup.value) is not int
        or not 0 < steps.value < warmup.value
    ):
        return tree, []
    section = find_node(tree, WARMUP[:1])
    assert section is not None and isinstance(section.value, dict) and isinstance(tree.value, dict)
    cut = replace(section, value={**section.value, WARMUP[1]: replace(warmup, value=AUTO)})
    warning = Problem(
        "conflict",
        f"a warmup of {warmup.value:,} steps exceeds the {steps.value:,} of the command line: "
        "warmup_steps is auto instead",
        STEPS,
        steps.origin,
        "warning",
        hint="give lr_scheduler.warmup_steps too for another warmup",
        rule="warmup-within-run",
        related=(RelatedLocation(warmup.origin, "the warmup", WARMUP),),
    )
    return replace(tree, value={**tree.value, WARMUP[0]: cut}), [warning]


def record_shadowed_lengths(tree: Node, replaced: tuple[Origin, ...]) -> Node:
    """Return the tree in which the remaining length records the origins it replaced."""
    section = find_node(tree, ("training",))
    assert section is not None and isinstance(section.value, dict) and isinstance(tree.value, dict)
    kept = {
        str(path[-1]): replace(node, shadowed_origins=(*node.shadowed_origins, *replaced))
        for path, node in find_written_lengths(tree)
    }
    return replace(
        tree, value={**tree.value, "training": replace(section, value={**section.value, **kept})}
    )


def find_written_lengths(tree: Node) -> list[tuple[DataPath, Node]]:
    """Return the lengths written in the tree; null and auto do not count."""
    places = [(("training", name), find_node(tree, ("training", name))) for name in LENGTH_FIELDS]
    return [
        (path, node) for path, node in places if node is not None and node.value not in (None, AUTO)
    ]


def get_extends_distance(origin: Origin) -> int:
    """Return 0 for an override, 1 for the given file, plus 1 for each level of `extends`."""
    if origin.source.kind == "override":
        return 0
    count, place = 1, origin.source.included_from
    while place is not None:
        count, place = count + 1, place.source.included_from
    return count


def compute_warmup_steps(share: float, steps: int) -> int:
    """Return the steps of a warmup that is a share of a run, rounded up as in transformers."""
    return math.ceil(steps * share)


def compute_tokens_per_step(recipe: Recipe, *, global_batch_size: int) -> int:
    """Return the input tokens of one optimizer step over all ranks."""
    return global_batch_size * recipe.training.seq_len


def resolve_run_length(recipe: Recipe, *, global_batch_size: int) -> dict[str, Any]:
    """Return `steps` if it is not written.

    It is derived from tokens (rounded up), null with epochs, and else the default.
    """
    training = recipe.training
    if training.steps != AUTO:
        return {}
    if training.epochs is not None:
        return {"steps": None}
    if training.tokens is not None:
        return {
            "steps": -(
                -training.tokens
                // compute_tokens_per_step(recipe, global_batch_size=global_batch_size)
            ),
            "tokens": None,
        }
    return {"steps": DEFAULT_STEPS}


def describe_short_epochs(
    epochs: int,
    num_samples: int,
    size: int,
    *,
    noun: str = "sequence",
    size_field: str = "training.global_batch_size",
    local_size: int | None = None,
    least: int = 1,
) -> tuple[str, str]:
    """Return message and hint of epochs that have fewer samples than one step.

    Args:
        epochs: Number of epochs.
        num_samples: Samples of an epoch.
        size: Samples of a step.
        noun: Name of a sample.
        size_field: Setting of `size`.
        local_size: Samples that a device computes at once, None where the size need not divide.
        least: Smallest size that the loss accepts.
    """
    total = epochs * num_samples
    each = f" of {pluralize(num_samples, noun)} have" if epochs > 1 else " has"
    message = (
        f"{pluralize(epochs, 'epoch')}{each} {pluralize(total, noun)}, but {size_field} is {size}"
    )
    fewer = least
    while total >= 2 * fewer * USUAL_STEPS:
        fewer *= 2
    divides = local_size is None or fewer % local_size == 0
    fields = size_field if divides else f"{LOCAL_BATCH_SIZE} and {size_field}"
    steps = pluralize(total // fewer, "step")
    longer = f"training.epochs to {math.ceil(size / num_samples)} for 1 step"
    return message, f"set {fields} to {fewer} for {steps}, {longer}, or use more data"
