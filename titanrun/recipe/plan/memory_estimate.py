"""Estimate of the memory that one rank needs.

Weights, gradients and optimizer states are counted; activations come from a formula.

The formula counts the tensors that a decoder layer keeps for its backward pass (Korthikanti et al.,
https://arxiv.org/abs/2205.05198, section 4, for SwiGLU, RMSNorm and an attention kernel that keeps
no scores): per token, the inputs of both norms, their outputs, queries, keys and values, the
attention's output before and after its layout is changed for the projection, and four times the
hidden width.
"""

from dataclasses import replace

from titanrun.components.converters.quantization_config import LM_HEAD
from titanrun.components.losses.config import ChunkedCrossEntropyConfig
from titanrun.recipe.plan.activations import compute_layer_activations, count_live_microbatches
from titanrun.recipe.plan.devices import Device
from titanrun.recipe.plan.model_copies import (
    count_copied_elements,
    estimate_model_copies,
    keeps_head_in_fp32,
)
from titanrun.recipe.plan.pass_peak import FREED_BY_A_PASS, GRADIENTS, estimate_absent_bytes
from titanrun.recipe.plan.plan_layout import ZERO_SIZE, MemoryItem, ModuleSize, PlanLayout
from titanrun.recipe.rules.converters import selects_module

# relative error of the estimated activations, compared with autograd in tests/recipe/plan
ERROR_BAND = 0.25
# layers whose weights are gathered at once: the one being computed, and the one prefetched
GATHERED_LAYERS = 2
LOGIT_COPIES_FP32 = 2
ALLOCATOR_SHARE = 0.03
FP32_BYTES = 4


def estimate_memory(layout: PlanLayout, device: Device) -> list[MemoryItem]:
    """Return the memory items of the pipeline rank that needs most."""
    # of a large model this takes much longer than all else
    layout = replace(layout, layer_activations=compute_layer_activations(layout))
    return max(
        (
            estimate_stage_memory(layout, rank, parts, device)
            for rank, parts in enumerate(layout.get_sizes_per_rank())
        ),
        key=sum_bytes,
    )


def sum_bytes(items: list[MemoryItem]) -> int:
    """Return the bytes of all items."""
    return sum(item.bytes for item in items)


def estimate_stage_memory(
    layout: PlanLayout, rank: int, parts: list[ModuleSize], device: Device
) -> list[MemoryItem]:
    """Return the memory items of one pipeline rank."""
    items = [
        estimate_weights(layout, parts),
        estimate_gradients(layout, parts),
        estimate_optimizer_states(layout, parts),
    ]
    if layout.parallel_dims.fsdp_size > 1:
        items.append(estimate_gathered_weights(layout, parts))
    elif layout.compute_bytes < layout.storage_bytes:
        items.append(estimate_working_copies(layout, parts))
    items.append(estimate_activations(layout, rank, parts))
    if parts[-1] is layout.head:
        items.append(estimate_logits(layout))
        if computes_head_gradient(layout):
            items.append(estimate_head_gradient(layout))
    items += estimate_absent_bytes(layout, parts, items)
    items += estimate_step_temporaries(layout, parts, items)
    items += estimate_model_copies(layout, parts, device)
    return [*items, estimate_allocator(items)]


def estimate_weights(layout: PlanLayout, parts: list[ModuleSize]) -> MemoryItem:
    """Return the bytes of the weights that a rank keeps. Beside adapters others are narrower."""
    kept, trained = (
        sum(part.local for part in parts),
        sum(part.local_trainable for part in parts),
    )
    each = layout.storage_bytes
    text = f"{kept:,} x {each} bytes"
    if 0 < trained < kept:
        text = f"{trained:,} x {each} bytes, and {(kept - trained) * each:,} bytes of frozen ones"
    return MemoryItem("weights", kept * each, text)


def estimate_gradients(layout: PlanLayout, parts: list[ModuleSize]) -> MemoryItem:
    """Return the bytes of gradients: one element per trained weight.

    If weights are updated in the backward pass, only the gradients of the largest part are held at
    a time.
    """
    sizes, each = [part.local_trainable for part in parts], layout.storage_bytes
    if getattr(layout.run.optimizer, "early_step_in_backward", False):
        return MemoryItem(
            GRADIENTS, max(sizes) * each, f"largest part: {max(sizes):,} x {each} bytes"
        )
    return MemoryItem(GRADIENTS, sum(sizes) * each, f"{sum(sizes):,} x {each} bytes")


def estimate_optimizer_states(layout: PlanLayout, parts: list[ModuleSize]) -> MemoryItem:
    """Return the bytes of optimizer states for the weights of these parts."""
    each = {
        in_layer: layout.run.optimizer.compute_state_bytes(
            layout.storage_bytes, is_in_layer=in_layer
        )
        for in_layer in (True, False)
    }
    counts = {
        in_layer: sum(
            part.local_trainable for part in parts if is_decoder_layer(layout, part) is in_layer
        )
        for in_layer in (True, False)
    }
    if each[True] == each[False]:
        counts, each = {True: sum(counts.values())}, {True: each[True]}
    words = " + ".join(
        f"{count:,} x {each[in_layer]:.4g} bytes" for in_layer, count in counts.items()
    )
    return MemoryItem(
        "optimizer states",
        round(sum(count * each[in_layer] for in_layer, count in counts.items())),
        words,
    )


def is_decoder_layer(layout: PlanLayout, part: ModuleSize) -> bool:
    """Return whether a part is a layer, not the embedding or the output head."""
    return part is not layout.embedding and part is not layout.head


def estimate_gathered_weights(layout: PlanLayout, parts: list[ModuleSize]) -> MemoryItem:
    """Return the bytes of whole weights gathered for computation."""
    sizes = sorted((part.gathered for part in parts), reverse=True)
    keeps_all = layout.keeps_weights_gathered
    elements = sum(sizes if keeps_all else sizes[:GATHERED_LAYERS])
    what = "all parts" if keeps_all else f"{GATHERED_LAYERS} largest parts"
    return MemoryItem(
        "gathered weights",
        elements * layout.compute_bytes,
        f"{what}: {elements:,} x {layout.compute_bytes} bytes",
    )


def estimate_working_copies(layout: PlanLayout, parts: list[ModuleSize]) -> MemoryItem:
    """Return the bytes of the copies that a rank with whole weights computes with.

    The gradients of one part are counted too: they are in the compute dtype until they are added
    to those of the fp32 weights.
    """
    elements, each = count_copied_elements(layout, parts), layout.compute_bytes
    largest = max(part.local_trainable for part in parts)
    text = f"({elements:,} + gradients of the largest part: {largest:,}) x {each} bytes"
    return MemoryItem("working copies", (elements + largest) * each, text)


def estimate_activations(layout: PlanLayout, rank: int, parts: list[ModuleSize]) -> MemoryItem:
    """Return the bytes of activations kept for the backward pass.

    Counted are all microbatches in flight, and one layer that is being recomputed.
    """
    layer, in_flight = compute_layer_activations(layout), count_live_microbatches(layout, rank)
    layers = sum(is_decoder_layer(layout, part) for part in parts)
    per_token = layer.count_elements(layers) + layer.recompute_elements / in_flight
    tokens = round(layout.tokens_per_forward_pass // layout.num_microbatches * in_flight)
    words = f"{tokens:,} tokens x {per_token:,.0f} x {layout.compute_bytes} bytes"
    return MemoryItem(
        "activations",
        round(tokens * per_token * layout.compute_bytes),
        f"{words}, +-{ERROR_BAND:.0%}",
    )


def estimate_logits(layout: PlanLayout) -> MemoryItem:
    """Return the bytes of logits.

    There is one copy in the compute dtype, and two in fp32: for the loss, and for their gradient. A
    head that computes the gradient turns one fp32 copy into it, and rounds it to a third one.
    """
    width = layout.run.model.output_dim()
    if not layout.run.parallelism.disable_loss_parallel:
        width //= layout.parallel_dims.tp
    # a chunked loss holds the logits of one chunk
    tokens = -(
        -layout.tokens_per_forward_pass
        // layout.num_microbatches
        // (layout.run.loss.num_loss_chunks or 1)
    )
    tokens *= 1 + layout.run.model.mtp_depth()
    each = layout.compute_bytes + LOGIT_COPIES_FP32 * FP32_BYTES
    if computes_head_gradient(layout):
        rounds = not keeps_head_in_fp32(layout.run) and layout.compute_bytes < FP32_BYTES
        each = FP32_BYTES + (2 * layout.compute_bytes if rounds else 0)
    return MemoryItem(
        "logits", tokens * width * each, f"{tokens:,} tokens x {width:,} x {each} bytes"
    )


def computes_head_gradient(layout: PlanLayout) -> bool:
    """Return whether the head computes the gradients of its loss in the forward pass.

    One that is converted to low-precision products does not, and a frozen one has none.
    """
    run = layout.run
    return (
        isinstance(run.loss, ChunkedCrossEntropyConfig)
        and (layout.head + layout.embedding).local_trainable >= run.model.output_dim()
        and not any(selects_module(converter, LM_HEAD) for converter in run.converters)
    )


def estimate_head_gradient(layout: PlanLayout) -> MemoryItem:
    """Return the bytes of the fp32 gradient of the head's whole weight on this rank.

    It exists before the backward pass, beside all activations.
    """
    height, width = layout.run.model.output_dim() // layout.parallel_dims.tp, FP32_BYTES
    dim = layout.run.model.model_dim()
    return MemoryItem(
        "head gradient", height * dim * width, f"{height:,} x {dim:,} x {width} bytes"
    )


def estimate_step_temporaries(
    layout: PlanLayout, parts: list[ModuleSize], items: list[MemoryItem]
) -> list[MemoryItem]:
    """Return the temporaries of an update, as far as memory that a pass frees does not hold them.

    Args:
        layout: the run.
        parts: parts of this rank.
        items: all other memory items.
    """
    each = layout.run.optimizer.compute_temporary_bytes(layout.storage_bytes)
    elements = sum(part.local_trainable for part in parts)
    freed = sum(item.bytes for item in items if item.name in FREED_BY_A_PASS)
    further = round(elements * each) - freed
    if further <= 0:
        return []
    text = f"{elements:,} x {each:g} bytes, less what a pass frees"
    return [MemoryItem("optimizer temporaries", further, text)]


def estimate_allocator(items: list[MemoryItem]) -> MemoryItem:
    """Return what PyTorch's allocator holds besides tensors, and workspaces of kernels.

    The share is an assumption: a device that tensors alone fill is out of memory.
    """
    text = f"{ALLOCATOR_SHARE:.0%} of the above: workspaces, and blocks that no tensor fills"
    return MemoryItem("allocator", round(ALLOCATOR_SHARE * sum_bytes(items)), text)


def compute_checkpoint_bytes(layout: PlanLayout) -> int:
    """Return the bytes of one checkpoint: weights and optimizer states of all ranks."""
    outside, inside = layout.embedding + layout.head, sum(layout.layers, ZERO_SIZE)
    states, each = layout.run.optimizer.compute_state_bytes, layout.storage_bytes
    whole = outside + inside
    weights = whole.total_trainable * each
    if not layout.run.checkpoint.adapters_only:
        # beside adapters, in the compute dtype
        weights += (whole.total - whole.total_trainable) * layout.compute_bytes
    return weights + round(
        outside.total_trainable * states(each, is_in_layer=False)
        + inside.total_trainable * states(each, is_in_layer=True)
    )
