"""Bytes that one rank needs. Weights, gradients and optimizer states are counted; activations come from a formula.

The formula counts what a decoder layer keeps for its backward pass (Korthikanti et al., https://arxiv.org/abs/2205.05198, section 4,
for SwiGLU, RMSNorm and an attention kernel that keeps no scores): per token, the inputs of both norms, what they give, queries, keys
and values, the attention's output before and after it is laid out for the projection, and four times the hidden width.
"""

from dataclasses import dataclass

from titanrun.recipe.plan.activations import kept, microbatches_kept
from titanrun.recipe.plan.layout import NOTHING, Layout, Part

# of the estimate of activations, against what autograd keeps: tests/recipe/plan compares them
ERROR_BAND = 0.25
# layers whose weights are gathered at once: the one that computes, and the one fetched ahead
GATHERED_LAYERS = 2
LOGIT_COPIES_FP32 = 2


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the table: bytes, and how they come about."""

    name: str
    bytes: int
    formula: str


def memory(layout: Layout) -> list[Item]:
    """What the fullest rank needs, largest pipeline stage first to be asked."""
    return max(
        (stage_memory(layout, rank, parts) for rank, parts in enumerate(layout.stages())), key=total
    )


def total(items: list[Item]) -> int:
    """Bytes of all items."""
    return sum(item.bytes for item in items)


def stage_memory(layout: Layout, rank: int, parts: list[Part]) -> list[Item]:
    """What one pipeline rank needs."""
    kept = sum(part.kept for part in parts)
    each = layout.storage_bytes
    items = [
        Item("weights", kept * each, f"{kept:,} x {each} bytes"),
        gradients(layout, parts),
        optimizer_states(layout, parts),
    ]
    if layout.degrees.fsdp > 1:
        items.append(gathered(layout, parts))
    items.append(activations(layout, rank, parts))
    if parts[-1] is layout.head:
        items.append(logits(layout))
    return items


def gradients(layout: Layout, parts: list[Part]) -> Item:
    """One for each weight that is trained; where weights are updated in the backward pass, one part's at a time."""
    sizes, each = [part.trained for part in parts], layout.storage_bytes
    if getattr(layout.run.optimizer, "early_step_in_backward", False):
        return Item(
            "gradients", max(sizes) * each, f"the largest part: {max(sizes):,} x {each} bytes"
        )
    return Item("gradients", sum(sizes) * each, f"{sum(sizes):,} x {each} bytes")


def optimizer_states(layout: Layout, parts: list[Part]) -> Item:
    """What the optimizer keeps for the weights of these parts."""
    each = {
        in_layer: layout.run.optimizer.state_bytes(layout.storage_bytes, in_layer=in_layer)
        for in_layer in (True, False)
    }
    counts = {
        in_layer: sum(part.trained for part in parts if is_layer(layout, part) is in_layer)
        for in_layer in (True, False)
    }
    if each[True] == each[False]:
        counts, each = {True: sum(counts.values())}, {True: each[True]}
    words = " + ".join(
        f"{count:,} x {each[in_layer]:.4g} bytes" for in_layer, count in counts.items()
    )
    return Item(
        "optimizer states",
        round(sum(count * each[in_layer] for in_layer, count in counts.items())),
        words,
    )


def is_layer(layout: Layout, part: Part) -> bool:
    """Whether a part is a layer, and neither embedding nor output head."""
    return part is not layout.embedding and part is not layout.head


def gathered(layout: Layout, parts: list[Part]) -> Item:
    """Whole weights that are gathered to compute with."""
    sizes = sorted((part.gathered for part in parts), reverse=True)
    keeps_all = layout.run.parallelism.fsdp_reshard_after_forward == "never" or (
        layout.run.parallelism.fsdp_reshard_after_forward == "default"
        and layout.degrees.pipeline > 1
    )
    elements = sum(sizes if keeps_all else sizes[:GATHERED_LAYERS])
    what = "all parts" if keeps_all else f"{GATHERED_LAYERS} largest parts"
    return Item(
        "gathered weights",
        elements * layout.compute_bytes,
        f"{what}: {elements:,} x {layout.compute_bytes} bytes",
    )


def activations(layout: Layout, rank: int, parts: list[Part]) -> Item:
    """What the layers keep for the backward pass, for every microbatch that is in flight, and a layer that is recomputed."""
    layer, in_flight = kept(layout), microbatches_kept(layout, rank)
    layers = sum(is_layer(layout, part) for part in parts)
    per_token = layer.of_layers(layers) + layer.while_recomputing / in_flight
    tokens = round(layout.tokens_per_pass // layout.microbatches * in_flight)
    words = f"{tokens:,} tokens x {per_token:,.0f} x {layout.compute_bytes} bytes"
    return Item(
        "activations",
        round(tokens * per_token * layout.compute_bytes),
        f"{words}, +-{ERROR_BAND:.0%}",
    )


def logits(layout: Layout) -> Item:
    """Logits in the compute type, and twice in fp32: for the loss, and their gradient."""
    width = layout.run.model.output_width()
    if not layout.run.parallelism.disable_loss_parallel:
        width //= layout.degrees.tensor
    # of a loss in chunks those of one chunk
    tokens = -(-layout.tokens_per_pass // layout.microbatches // (layout.run.loss.pieces or 1))
    tokens *= 1 + layout.run.model.further_tokens()
    each = layout.compute_bytes + LOGIT_COPIES_FP32 * 4
    return Item("logits", tokens * width * each, f"{tokens:,} tokens x {width:,} x {each} bytes")


def checkpoint_bytes(layout: Layout) -> int:
    """Bytes of one whole checkpoint: weights and optimizer states of all ranks."""
    outside, inside = layout.embedding + layout.head, sum(layout.layers, NOTHING)
    states, each = layout.run.optimizer.state_bytes, layout.storage_bytes
    whole = outside + inside
    weights = (whole.whole_trained if layout.run.checkpoint.adapters_only else whole.whole) * each
    return weights + round(
        outside.whole_trained * states(each, in_layer=False)
        + inside.whole_trained * states(each, in_layer=True)
    )
