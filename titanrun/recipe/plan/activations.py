"""Activation memory of layers, by recomputed operations and microbatches in flight."""

from collections.abc import Collection

from titanrun.distributed.config import (
    MemoryBudgetActivationCheckpointConfig,
    SelectiveActivationCheckpointConfig,
)
from titanrun.distributed.spec.pipeline_stages import PIPELINE_SCHEDULES
from titanrun.models.shared.config import unwrap_auto
from titanrun.recipe.plan.plan_layout import LayerActivations, PlanLayout

# products that return the residual stream: whole on every tensor-parallel rank, until the partial
# sums of the ranks are added
RESIDUAL_OUTPUT_NAMES = ("wo", "w2")
# the router's logits are recomputed, and the policy does not count grouped products of experts
NOT_COUNTED = (".moe.experts.", ".router.")


def compute_layer_activations(layout: PlanLayout) -> LayerActivations:
    """Return the activations of a layer of the run."""
    if layout.layer_activations is not None:
        return layout.layer_activations
    config, tensor = layout.run.activation_checkpoint, layout.parallel_dims.tp
    stream, split = layout.run.model.layer_activation_elements()
    shared = get_sequence_parallel_size(layout)
    whole, entering = stream / shared + split / tensor, layout.run.model.model_dim() / shared
    if config.name == "full":
        return LayerActivations(whole, entering, 1)
    if isinstance(config, SelectiveActivationCheckpointConfig):
        return (
            LayerActivations(whole, entering, config.layer_interval)
            if config.layer_interval
            else LayerActivations(whole, entering + compute_selective_op_activations(layout), 1)
        )
    if isinstance(config, MemoryBudgetActivationCheckpointConfig):
        return LayerActivations(whole, entering + config.memory_budget * (whole - entering), 1)
    return LayerActivations(whole, whole, None)


def get_sequence_parallel_size(layout: PlanLayout) -> int:
    """Return the number of ranks that share the residual stream of a sequence."""
    return layout.parallel_dims.tp if layout.run.parallelism.enable_sequence_parallel else 1


def compute_selective_op_activations(layout: PlanLayout) -> float:
    """Return elements of one token that selective checkpointing by operation keeps in a layer.

    The policy is in `distributed/activation_checkpoint.py`. The result is that of the kind of layer
    that keeps most.
    """
    kinds: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}
    shapes = layout.run.model.parameter_shapes()
    for index in range(layout.run.model.layer_count()):
        front = f"layers.{index}"
        layer = {
            name.removeprefix(front): shape
            for name, shape in shapes.items()
            if name.startswith(f"{front}.")
        }
        kinds[tuple(layer)] = layer
    return max(compute_layer_op_activations(layout, layer) for layer in kinds.values())


def compute_layer_op_activations(layout: PlanLayout, layer: dict[str, tuple[int, ...]]) -> float:
    """Return `compute_selective_op_activations` of one layer.

    `layer` maps parameter names to shapes [out, in].
    """
    tensor, shared, saves = (
        layout.parallel_dims.tp,
        get_sequence_parallel_size(layout),
        get_saved_operations(layout),
    )
    products = list_counted_products(layer)
    chosen = (
        products
        if "products" in saves
        else products[::2]
        if "every_second_product" in saves
        else []
    )
    found = sum(
        out if name.endswith(RESIDUAL_OUTPUT_NAMES) else out / tensor for name, (out, _) in chosen
    )
    if "attention" in saves:
        found += sum(width for name, (_, width) in products if name.endswith(".wo")) / tensor
    if "biased_products" in saves:
        found += (
            sum(
                shape[0]
                for name, shape in layer.items()
                if name.endswith(".bias") and not is_uncounted_parameter(name)
            )
            / tensor
        )
    if "activations" in saves:
        found += sum(out for name, (out, _) in products if name.endswith("w1")) / tensor
    if tensor > 1 and shared > 1 and "reduce_scatter" in saves:
        # reduce-scattered partial products into the stream
        found += (
            sum(out for name, (out, _) in products if name.endswith(RESIDUAL_OUTPUT_NAMES)) / shared
        )
    return found + compute_expert_op_activations(layout, layer)


def compute_expert_op_activations(layout: PlanLayout, layer: dict[str, tuple[int, ...]]) -> float:
    """Return the part of `compute_layer_op_activations` for tokens routed to experts.

    It is 0 for a dense layer.
    """
    moe, tensor, saves = (
        unwrap_auto(getattr(layout.run.model, "moe", None)),
        layout.parallel_dims.tp,
        get_saved_operations(layout),
    )
    if moe is None or not any(".experts." in name for name in layer):
        return 0
    top_k, hidden, stream, found = (
        int(unwrap_auto(moe.top_k)),
        int(unwrap_auto(moe.hidden_dim)),
        layout.run.model.model_dim(),
        0.0,
    )
    if layout.parallel_dims.ep > 1 and "all_to_all" in saves:
        # tokens sent to experts and back
        found += 2 * top_k * stream / tensor
    if "grouped_products" in saves:
        found += top_k * (2 * hidden + stream) / tensor
    return found + (top_k * hidden / tensor if "activations" in saves else 0)


def get_saved_operations(layout: PlanLayout) -> Collection[str]:
    """Return the operations whose results are kept if layers are recomputed by operation."""
    chosen = layout.run.activation_checkpoint
    return (
        chosen.per_op_sac_saves if isinstance(chosen, SelectiveActivationCheckpointConfig) else ()
    )


def is_uncounted_parameter(name: str) -> bool:
    """Return whether a parameter is in no matrix product that the policy counts."""
    return any(text in name for text in NOT_COUNTED)


def list_counted_products(layer: dict[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and shape of each matrix whose product the policy counts.

    They are in the order of the forward pass. Matrices with a bias are excluded: product and
    addition are one fused operation, which the policy counts separately.
    """
    biased = {name.removesuffix(".bias") for name in layer if name.endswith(".bias")}
    matrices = {
        name.removesuffix(".weight"): shape for name, shape in layer.items() if len(shape) == 2
    }
    named = [
        (name, shape)
        for name, shape in matrices.items()
        if name not in biased and not is_uncounted_parameter(name)
    ]
    # the third matrix of SwiGLU computes the value, before the second projects it to the stream
    return sorted(
        named,
        key=lambda entry: (entry[0].rpartition(".")[0] != ".attention", entry[0].endswith("w2")),
    )


def count_live_microbatches(layout: PlanLayout, rank: int) -> float:
    """Return the microbatches whose activations a pipeline rank keeps at the same time.

    On ranks with several stages this applies to all of their layers. It is the number of
    microbatches that wait for their backward pass: all of them if the backward passes come last,
    else those that start before the first one returns (Narayanan et al.,
    https://arxiv.org/abs/2104.04473); V-shaped schedules keep as many as there are ranks (Qi et
    al., https://arxiv.org/abs/2401.10241).
    """
    name, ranks, every = (
        layout.run.parallelism.pipeline_parallel_schedule,
        layout.parallel_dims.pp,
        layout.num_microbatches,
    )
    if ranks == 1:
        return 1
    shape = PIPELINE_SCHEDULES.get(name)
    if (
        name in ("GPipe", "LoopedBFS")
        or shape is None
        or layout.run.parallelism.pipeline_parallel_schedule_csv is not None
    ):
        return every
    if shape.is_v_shaped:
        return min(every, ranks)
    own = layout.stages_per_rank
    ahead = ranks - rank if own == 1 else (2 * (ranks - rank - 1) + (own - 1) * ranks + 1) / own
    return min(every, ahead)
