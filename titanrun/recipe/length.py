"""The length of a run: steps, tokens or epochs, exactly one of them, and what follows from it.

Two lengths in one text are a conflict. In different texts the one nearest the user counts, as everywhere: an override before the
given file, that before what it extends. So `training.tokens=20B` lengthens a recipe that says `steps`, and the file stays as it is.

What a resolved recipe holds: tokens become steps, since the size of a step is known; epochs stay, since only the data knows how many
rows it has. Then `steps` and what follows from it are null until the worker has opened the data.
"""

from dataclasses import replace
from typing import Any

from titanrun.config.problems import DataPath, Origin
from titanrun.config.tree import Node, find, without
from titanrun.config.types import AUTO
from titanrun.recipe.recipe import Recipe

DEFAULT_STEPS = 10_000
LENGTHS = ("steps", "tokens", "epochs")
# what training.steps decides where nobody writes it
FOLLOW_STEPS: tuple[tuple[str, str], ...] = (
    ("lr_scheduler", "warmup_steps"),
    ("lr_scheduler", "total_steps"),
)


def with_one_length(tree: Node) -> Node:
    """The tree with only the length nearest the user. Two at the same distance stay, for the rule one-length to tell."""
    written = written_lengths(tree)
    if len(written) < 2:
        return tree
    nearest = min(distance(node.origin) for _, node in written)
    gone = [(path, node) for path, node in written if distance(node.origin) > nearest]
    if not gone:
        return tree
    tree = shadowing(
        without(tree, {path for path, _ in gone}), tuple(node.origin for _, node in gone)
    )
    # a resolved recipe says null for what followed its epochs
    followed = (("training", "steps"), *FOLLOW_STEPS)
    return without(
        tree,
        {
            path
            for path in followed
            if (node := find(tree, path)) is not None and node.value is None
        },
    )


def shadowing(tree: Node, replaced: tuple[Origin, ...]) -> Node:
    """The tree in which the length that is left says which others it replaced."""
    section = find(tree, ("training",))
    assert section is not None and isinstance(section.value, dict) and isinstance(tree.value, dict)
    kept = {
        str(path[-1]): replace(node, shadowed=(*node.shadowed, *replaced))
        for path, node in written_lengths(tree)
    }
    return replace(
        tree, value={**tree.value, "training": replace(section, value={**section.value, **kept})}
    )


def written_lengths(tree: Node) -> list[tuple[DataPath, Node]]:
    """The lengths that the tree holds; null and auto are none."""
    places = [(("training", name), find(tree, ("training", name))) for name in LENGTHS]
    return [
        (path, node) for path, node in places if node is not None and node.value not in (None, AUTO)
    ]


def distance(origin: Origin) -> int:
    """0 for an override, 1 for the given file, one more for each step through `extends`."""
    if origin.source.kind == "override":
        return 0
    count, place = 1, origin.source.included_from
    while place is not None:
        count, place = count + 1, place.source.included_from
    return count


def tokens_per_step(recipe: Recipe, *, global_batch_size: int) -> int:
    """Input tokens of one optimizer step over all ranks."""
    return global_batch_size * recipe.training.seq_len


def decided_length(recipe: Recipe, *, global_batch_size: int) -> dict[str, Any]:
    """The steps that nobody wrote: those that the tokens come to, rounded up; null where epochs decide; else the default."""
    training = recipe.training
    if training.steps != AUTO:
        return {}
    if training.epochs is not None:
        return {"steps": None}
    if training.tokens is not None:
        return {
            "steps": -(
                -training.tokens // tokens_per_step(recipe, global_batch_size=global_batch_size)
            ),
            "tokens": None,
        }
    return {"steps": DEFAULT_STEPS}
