"""What layers keep for their backward pass, by what is recomputed and by the microbatches that are under way at once."""

from collections.abc import Collection
from dataclasses import dataclass

from titanrun.distributed.config import (
    MemoryBudgetActivationCheckpointConfig,
    SelectiveActivationCheckpointConfig,
)
from titanrun.distributed.stages import SCHEDULES
from titanrun.models.shared.config import decided
from titanrun.recipe.plan.layout import Layout

# products that give the stream: whole on every tensor-parallel rank, until the ranks' parts are added up
INTO_STREAM = ("wo", "w2")
# the router's logits are computed again, and grouped products of experts are none that the policy counts
NOT_COUNTED = (".moe.experts.", ".router.")


@dataclass(frozen=True, slots=True)
class Kept:
    """Elements of one token on one rank: of a layer as it is, of one that is recomputed, and how many of the layers are.

    Args:
        whole: of a layer that keeps everything.
        partly: of a layer that is recomputed.
        recomputes: of that many layers one is recomputed; None: no layer is.
    """

    whole: float
    partly: float
    recomputes: int | None

    def of_layers(self, count: int) -> float:
        """Elements that so many layers keep from the forward pass on."""
        again = 0 if self.recomputes is None else count // self.recomputes
        return again * self.partly + (count - again) * self.whole

    @property
    def while_recomputing(self) -> float:
        """Elements that come back while one layer of one microbatch is recomputed."""
        return 0 if self.recomputes is None else self.whole


def kept(layout: Layout) -> Kept:
    """What a layer of the run keeps."""
    config, tensor = layout.run.activation_checkpoint, layout.degrees.tensor
    stream, split = layout.run.model.kept_widths()
    shared = shares_of_stream(layout)
    whole, entering = stream / shared + split / tensor, layout.run.model.stream_width() / shared
    if config.name == "full":
        return Kept(whole, entering, 1)
    if isinstance(config, SelectiveActivationCheckpointConfig):
        return (
            Kept(whole, entering, config.every)
            if config.every
            else Kept(whole, entering + kept_by_operation(layout), 1)
        )
    if isinstance(config, MemoryBudgetActivationCheckpointConfig):
        return Kept(whole, entering + config.memory_budget * (whole - entering), 1)
    return Kept(whole, whole, None)


def shares_of_stream(layout: Layout) -> int:
    """Ranks that share the residual stream of a row."""
    return layout.degrees.tensor if layout.run.parallelism.enable_sequence_parallel else 1


def kept_by_operation(layout: Layout) -> float:
    """Elements of one token that selective checkpointing by operation keeps within a layer (`distributed/activation_checkpoint.py`); of the
    kind of layer that keeps most."""
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
    return max(kept_of_layer(layout, layer) for layer in kinds.values())


def kept_of_layer(layout: Layout, layer: dict[str, tuple[int, ...]]) -> float:
    """`kept_by_operation` of a layer with parameters of these names and shapes [out, in]."""
    tensor, shared, saves = (
        layout.degrees.tensor,
        shares_of_stream(layout),
        saved_operations(layout),
    )
    products = counted_products(layer)
    chosen = (
        products
        if "products" in saves
        else products[::2]
        if "every_second_product" in saves
        else []
    )
    found = sum(out if name.endswith(INTO_STREAM) else out / tensor for name, (out, _) in chosen)
    if "attention" in saves:
        found += sum(width for name, (_, width) in products if name.endswith(".wo")) / tensor
    if "biased_products" in saves:
        found += (
            sum(
                shape[0]
                for name, shape in layer.items()
                if name.endswith(".bias") and not is_not_counted(name)
            )
            / tensor
        )
    if "activations" in saves:
        found += sum(out for name, (out, _) in products if name.endswith("w1")) / tensor
    if tensor > 1 and shared > 1 and "reduce_scatter" in saves:
        # the parts of products into the stream, added up and scattered
        found += sum(out for name, (out, _) in products if name.endswith(INTO_STREAM)) / shared
    return found + kept_of_experts(layout, layer)


def kept_of_experts(layout: Layout, layer: dict[str, tuple[int, ...]]) -> float:
    """`kept_of_layer` of what a router sends to experts; 0 for a dense layer."""
    moe, tensor, saves = (
        decided(getattr(layout.run.model, "moe", None)),
        layout.degrees.tensor,
        saved_operations(layout),
    )
    if moe is None or not any(".experts." in name for name in layer):
        return 0
    top_k, hidden, stream, found = (
        int(decided(moe.top_k)),
        int(decided(moe.hidden_dim)),
        layout.run.model.stream_width(),
        0.0,
    )
    if layout.degrees.expert > 1 and "all_to_all" in saves:
        # tokens on their way to experts and back
        found += 2 * top_k * stream / tensor
    if "grouped_products" in saves:
        found += top_k * (2 * hidden + stream) / tensor
    return found + (top_k * hidden / tensor if "activations" in saves else 0)


def saved_operations(layout: Layout) -> Collection[str]:
    """What the run keeps of layers whose operations are recomputed."""
    chosen = layout.run.activation_checkpoint
    return (
        chosen.per_op_sac_saves if isinstance(chosen, SelectiveActivationCheckpointConfig) else ()
    )


def is_not_counted(name: str) -> bool:
    """Whether a parameter takes part in no product that the policy counts."""
    return any(text in name for text in NOT_COUNTED)


def counted_products(layer: dict[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each matrix whose product the policy counts, in the order of the forward pass: those with a bias are added
    to it in one operation, which is another one."""
    biased = {name.removesuffix(".bias") for name in layer if name.endswith(".bias")}
    matrices = {
        name.removesuffix(".weight"): shape for name, shape in layer.items() if len(shape) == 2
    }
    named = [
        (name, shape)
        for name, shape in matrices.items()
        if name not in biased and not is_not_counted(name)
    ]
    # the third matrix of SwiGLU makes the value, before the second takes it back into the stream
    return sorted(
        named,
        key=lambda entry: (entry[0].rpartition(".")[0] != ".attention", entry[0].endswith("w2")),
    )


def microbatches_kept(layout: Layout, rank: int) -> float:
    """Microbatches whose activations a pipeline rank keeps at the same time; of ranks with several stages, in all of their layers.

    As many as wait for their backward pass: all where that comes last, else those that went ahead before the first came back (Narayanan et
    al., https://arxiv.org/abs/2104.04473; the V-shaped ones by Qi et al., https://arxiv.org/abs/2401.10241, as many as ranks).
    """
    name, ranks, every = (
        layout.run.parallelism.pipeline_parallel_schedule,
        layout.degrees.pipeline,
        layout.microbatches,
    )
    if ranks == 1:
        return 1
    shape = SCHEDULES.get(name)
    if (
        name in ("GPipe", "LoopedBFS")
        or shape is None
        or layout.run.parallelism.pipeline_parallel_schedule_csv is not None
    ):
        return every
    if shape.v_shaped:
        return min(every, ranks)
    own = layout.stages_per_rank
    ahead = ranks - rank if own == 1 else (2 * (ranks - rank - 1) + (own - 1) * ranks + 1) / own
    return min(every, ahead)
