"""What layers keep for their backward pass, by what is recomputed and by the microbatches that are under way at once."""

from dataclasses import dataclass

from titanrun.distributed.config import MemoryBudgetActivationCheckpointConfig, SelectiveActivationCheckpointConfig
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
        return Kept(whole, entering, config.every) if config.every else Kept(whole, entering + kept_by_operation(layout), 1)
    if isinstance(config, MemoryBudgetActivationCheckpointConfig):
        return Kept(whole, entering + config.memory_budget * (whole - entering), 1)
    return Kept(whole, whole, None)


def shares_of_stream(layout: Layout) -> int:
    """Ranks that share the residual stream of a row."""
    return layout.degrees.tensor if layout.run.parallelism.enable_sequence_parallel else 1


def kept_by_operation(layout: Layout) -> float:
    """Elements of one token that selective checkpointing by operation keeps within a layer: every second product, what attention
    gives, and what comes from other ranks (`distributed/activation_checkpoint.py`); of the kind of layer that keeps most."""
    kinds: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}
    shapes = layout.run.model.parameter_shapes()
    for index in range(layout.run.model.layer_count()):
        front = f"layers.{index}"
        layer = {name.removeprefix(front): shape for name, shape in shapes.items() if name.startswith(f"{front}.")}
        kinds[tuple(layer)] = layer
    return max(kept_of_layer(layout, layer) for layer in kinds.values())


def kept_of_layer(layout: Layout, layer: dict[str, tuple[int, ...]]) -> float:
    """`kept_by_operation` of a layer with parameters of these names and shapes [out, in]."""
    tensor, shared = layout.degrees.tensor, shares_of_stream(layout)
    products = counted_products(layer)
    found = 0.0
    for name, (out, _) in products[::2]:
        found += out if name.endswith(INTO_STREAM) else out / tensor
    attended = [width for name, (_, width) in products if name.endswith(".wo")]
    found += sum(attended) / tensor
    moe = decided(getattr(layout.run.model, "moe", None))
    if tensor > 1 and shared > 1:
        # the parts of products into the stream, added up and scattered
        found += sum(out for name, (out, _) in products if name.endswith(INTO_STREAM)) / shared
    if layout.degrees.expert > 1 and moe is not None and any(".experts." in name for name in layer):
        # tokens on their way to experts and back
        found += 2 * int(decided(moe.top_k)) * layout.run.model.stream_width() / tensor
    return found


def counted_products(layer: dict[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each matrix whose product the policy counts, in the order of the forward pass: those with a bias are added
    to it in one operation, which is another one."""
    biased = {name.removesuffix(".bias") for name in layer if name.endswith(".bias")}
    matrices = {name.removesuffix(".weight"): shape for name, shape in layer.items() if len(shape) == 2}
    named = [(name, shape) for name, shape in matrices.items() if name not in biased and not any(text in name for text in NOT_COUNTED)]
    # the third matrix of SwiGLU makes the value, before the second takes it back into the stream
    return sorted(named, key=lambda entry: (entry[0].rpartition(".")[0] != ".attention", entry[0].endswith("w2")))


def microbatches_kept(layout: Layout, rank: int) -> float:
    """Microbatches whose activations a pipeline rank keeps at the same time; of ranks with several stages, in all of their layers.

    As many as wait for their backward pass: all where that comes last, else those that went ahead before the first came back (Narayanan et
    al., https://arxiv.org/abs/2104.04473; the V-shaped ones by Qi et al., https://arxiv.org/abs/2401.10241, as many as ranks).
    """
    name, ranks, every = layout.run.parallelism.pipeline_parallel_schedule, layout.degrees.pipeline, layout.microbatches
    if ranks == 1:
        return 1
    shape = SCHEDULES.get(name)
    if name in ("GPipe", "LoopedBFS") or shape is None or layout.run.parallelism.pipeline_parallel_schedule_csv is not None:
        return every
    if shape.v_shaped:
        return min(every, ranks)
    own = layout.stages_per_rank
    ahead = ranks - rank if own == 1 else (2 * (ranks - rank - 1) + (own - 1) * ranks + 1) / own
    return min(every, ahead)
