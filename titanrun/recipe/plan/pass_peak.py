"""Peak of a step with one pass, whose activations are freed while its gradients appear.

With several passes, or microbatches of a pipeline, the gradients of the first are there beside the
activations of the last.
"""

from collections.abc import Iterator

from titanrun.recipe.plan.activations import compute_layer_activations
from titanrun.recipe.plan.plan_layout import MemoryItem, ModuleSize, PlanLayout

GRADIENTS, ABSENT = "gradients", "not at once"
# what a pass frees: the update of the optimizer, which comes after it, uses that memory again
FREED_BY_A_PASS = ("activations", "logits", "head gradient", ABSENT)


def estimate_absent_bytes(
    layout: PlanLayout, parts: list[ModuleSize], items: list[MemoryItem]
) -> list[MemoryItem]:
    """Return what is never there at once of all gradients and activations, as negative bytes.

    Args:
        layout: the run.
        parts: parts of this rank.
        items: all memory items of the pass.
    """
    if not has_one_pass(layout):
        return []
    sizes = {item.name: item.bytes for item in items}
    whole = sizes[GRADIENTS] + sum(sizes.get(name, 0) for name in FREED_BY_A_PASS)
    absent = whole - max(iter_pass_bytes(layout, parts, sizes))
    text = "of a single pass, gradients appear while activations are freed"
    return [MemoryItem(ABSENT, -absent, text)] if absent > 0 else []


def has_one_pass(layout: PlanLayout) -> bool:
    """Return whether the gradients of a step come from a single pass, and are kept until its end.

    If weights are updated in the backward pass, gradients are not kept. The passes of a step of RL
    depend on its rollouts.
    """
    updates_early = getattr(layout.run.optimizer, "early_step_in_backward", False)
    is_single = layout.num_forward_passes == 1 and layout.parallel_dims.pp == 1
    return is_single and not updates_early and layout.run.rl is None


def iter_pass_bytes(
    layout: PlanLayout, parts: list[ModuleSize], sizes: dict[str, int]
) -> Iterator[int]:
    """Yield bytes of gradients and of what a pass frees, at moments that may be the peak.

    These are the end of the forward pass, the backward pass of each layer, and its end.
    """
    layer = compute_layer_activations(layout)
    token_bytes = layout.tokens_per_forward_pass * layout.compute_bytes
    layers = [part for part in parts if part is not layout.embedding and part is not layout.head]
    recomputed = round(token_bytes * layer.recompute_elements)
    ended = sizes.get("logits", 0) + sizes.get("head gradient", 0)
    yield round(token_bytes * layer.count_elements(len(layers))) + ended
    gradients = max(
        count_head_gradients(layout) * layout.storage_bytes, sizes.get("head gradient", 0)
    )
    for index in reversed(range(len(layers))):
        stored = round(token_bytes * layer.count_elements(index + 1))
        yield stored + recomputed + gradients
        gradients += layers[index].local_trainable * layout.storage_bytes
    yield sizes[GRADIENTS]


def count_head_gradients(layout: PlanLayout) -> int:
    """Count the gradients of the head, which a tied embedding shares."""
    is_tied = getattr(layout.run.model, "tie_word_embeddings", False) is True
    return layout.head.local_trainable + (layout.embedding.local_trainable if is_tied else 0)
