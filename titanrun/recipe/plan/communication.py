"""Estimate of communication per mesh axis, and of the pipeline bubble.

Bytes that one rank sends along each mesh axis in one optimizer step, by ring collectives: (n - 1) /
n of the data, twice to reduce it everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.distributed.config import SelectiveActivationCheckpointConfig
from titanrun.distributed.spec.pipeline_stages import PIPELINE_SCHEDULES
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.recipe import find_lora_converter

# collectives over the residual stream in one layer, in the forward pass and again in the backward
# pass: gather and scatter around attention and feed-forward
STREAM_COLLECTIVES = 4
# if layers are recomputed, the two gathers and two scatters of the forward pass are repeated; with
# selective checkpointing by operation only the gathers
RECOMPUTED_STREAM_COLLECTIVES = 4
# gradients are reduced in fp32
GRADIENT_BYTES = 4
# share of a step that pipeline ranks are idle, above which a plan warns
LARGE_BUBBLE = 0.2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one rank sends along one mesh axis in a step."""

    axis: str
    bytes: int
    description: str


def compute_ring_bytes(bytes_: float, ranks: int) -> int:
    """Return the bytes one rank sends in a ring collective that gathers or scatters `bytes_`."""
    return round(bytes_ * (ranks - 1) / ranks)


def estimate_traffic(layout: PlanLayout) -> list[Traffic]:
    """Return the traffic of all axes with more than one rank."""
    found = [*estimate_weight_traffic(layout), *estimate_activation_traffic(layout)]
    return [entry for entry in found if entry.bytes]


def estimate_weight_traffic(layout: PlanLayout) -> list[Traffic]:
    """Return the traffic of gathered weights and reduced gradients.

    It is that of the fullest pipeline rank.
    """
    degrees, ranks = layout.parallel_dims, layout.get_sizes_per_rank()
    shards = max(
        count_gathered_elements(layout, parts) * layout.compute_bytes
        + sum(part.gathered_trainable for part in parts) * GRADIENT_BYTES
        for parts in ranks
    )
    summed = max(sum(part.local_trainable for part in parts) for parts in ranks) * GRADIENT_BYTES
    gathers = 1 if layout.keeps_weights_gathered else 2
    gradients = "gradients of adapters" if find_lora_converter(layout.run) else "gradients"
    return [
        Traffic(
            "fsdp",
            compute_ring_bytes(shards * layout.num_forward_passes, degrees.fsdp_size),
            f"weights gathered {gathers}x and {gradients} scattered, per forward pass",
        ),
        Traffic(
            "dp_replicate",
            2 * compute_ring_bytes(summed * layout.num_forward_passes, degrees.dp_replicate),
            f"{gradients} summed over replicas",
        ),
    ]


def count_gathered_elements(layout: PlanLayout, parts: Sequence[ModuleSize]) -> int:
    """Count the elements that a rank gathers in a forward pass and its backward pass.

    Frozen weights are gathered for the backward pass too, which multiplies by them.
    """
    sizes = [part.gathered - part.unsharded for part in parts]
    if layout.keeps_weights_gathered:
        return sum(sizes)
    # FSDP also prefetches the part below the last one with a backward pass
    return sum(sizes) + sum(sizes[-len(layout.get_backward_parts()) - 1 :])


def estimate_activation_traffic(layout: PlanLayout) -> list[Traffic]:
    """Return the traffic of ranks that split layers, sequences, stages or experts.

    Frozen weights do not change it: the gradient of the residual stream passes them, down to the
    first trained weight.
    """
    degrees, run = layout.parallel_dims, layout.run
    tokens, each, dim = (
        layout.tokens_per_forward_pass * layout.num_forward_passes,
        layout.compute_bytes,
        layout.run.model.model_dim(),
    )
    layers = -(-len(layout.layers) // degrees.pp)
    backward = min(layers, layout.count_backward_layers())
    again = STREAM_COLLECTIVES + RECOMPUTED_STREAM_COLLECTIVES * get_recomputed_share(layout)
    stream = tokens * dim * each
    moe = getattr(run.model, "moe", None)
    routed = 0 if moe is None else tokens // degrees.tp * int(moe.top_k) * dim * each
    keys_and_values = tokens * degrees.cp * run.model.kv_dim() * each
    collectives = STREAM_COLLECTIVES * layers + again * backward
    return [
        Traffic(
            "tp",
            round(compute_ring_bytes(stream, degrees.tp) * collectives),
            f"residual stream, {layers} layers",
        ),
        Traffic(
            "cp",
            compute_ring_bytes(keys_and_values, degrees.cp) * (layers + 2 * backward),
            "keys and values and their gradients",
        ),
        estimate_pipeline_traffic(layout, stream),
        Traffic(
            "ep",
            compute_ring_bytes(routed * 2, degrees.ep) * (layers + backward),
            "tokens to their experts and back, forward and backward",
        ),
    ]


def estimate_pipeline_traffic(layout: PlanLayout, stream: int) -> Traffic:
    """Return the traffic between pipeline ranks.

    If embedding and output head are tied, the first and the last rank also add up the gradients of
    their two copies, once per step.
    """
    description = "residual stream to the next stage, its gradient back"
    if layout.parallel_dims.pp == 1:
        return Traffic("pp", 0, description)
    if any(map(layout.lacks_embedding, layout.get_stage_sizes_per_rank())):
        return Traffic(
            "pp",
            2 * stream + layout.embedding.local * layout.storage_bytes,
            f"{description}, and the gradient of the tied embedding",
        )
    return Traffic("pp", 2 * stream, description)


def get_recomputed_share(layout: PlanLayout) -> float:
    """Return the share of the forward pass collectives that the backward pass repeats."""
    config = layout.run.activation_checkpoint
    if isinstance(config, SelectiveActivationCheckpointConfig):
        # the results of reduce-scatters are kept
        return 1 / config.layer_interval if config.layer_interval else 1 / 2
    return float(config.name == "full")


def estimate_pipeline_bubble(layout: PlanLayout) -> float:
    """Return the share of a step that a pipeline rank is idle.

    It is (p - 1) / (v m + p - 1) for p ranks, v stages per rank, m microbatches (Narayanan et al.,
    https://arxiv.org/abs/2104.04473), and a third of it if backward passes are split (Qi et al.,
    https://arxiv.org/abs/2401.10241).
    """
    ranks = layout.parallel_dims.pp
    if ranks == 1:
        return 0.0
    shape = PIPELINE_SCHEDULES.get(layout.run.parallelism.pipeline_parallel_schedule)
    waits = (ranks - 1) / (layout.stages_per_rank * layout.num_microbatches + ranks - 1)
    return waits / 3 if shape and shape.has_split_backward else waits
