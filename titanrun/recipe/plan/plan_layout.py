"""Input of a plan: the run, its ranks, and the sizes of the model's parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.distributed.spec.pipeline_stages import (
    PIPELINE_SCHEDULES,
    get_stages_for_rank,
    plan_pipeline,
)
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.recipe import Recipe

Numbers: TypeAlias = dict[str, int]
EMBEDDING, HEAD = "tok_embeddings", "head"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Row of the memory table: bytes, and the formula behind them."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class ModuleSize:
    """Elements of one part of the model: the embedding, a layer, or norm and output head.

    Sizes are measured on the ranks: the whole part, the elements that one rank keeps, and those
    gathered for computation. `*_trainable` are the trained elements of these three. `copied` are
    the kept elements in the storage dtype: a rank that gathers nothing copies them in the compute
    dtype. Kept elements of other dtypes count by their bytes. `unsharded` are the elements that
    every rank keeps and never gathers, as the matrices of qlora.
    """

    total: int
    local: int
    gathered: int
    total_trainable: int
    local_trainable: int
    copied: int = 0
    gathered_trainable: int = 0
    unsharded: int = 0

    def __add__(self, other: "ModuleSize") -> "ModuleSize":
        return ModuleSize(
            *(getattr(self, field) + getattr(other, field) for field in self.__slots__)
        )


ZERO_SIZE = ModuleSize(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Elements of one token on one rank, with and without recomputation of a layer.

    Args:
        full_elements: Elements of a layer that keeps all activations.
        recomputed_elements: Elements of a layer that is recomputed.
        recompute_every: One of this many layers is recomputed. None: no layer is.
    """

    full_elements: float
    recomputed_elements: float
    recompute_every: int | None

    def count_elements(self, count: int) -> float:
        """Return the elements that `count` layers keep after the forward pass."""
        again = 0 if self.recompute_every is None else count // self.recompute_every
        return again * self.recomputed_elements + (count - again) * self.full_elements

    @property
    def recompute_elements(self) -> float:
        """Elements that are restored while one layer of one microbatch is recomputed."""
        return 0 if self.recompute_every is None else self.full_elements


@dataclass(frozen=True, slots=True)
class PlanLayout:
    """Run on a number of ranks.

    Args:
        run: Resolved recipe.
        parallel_dims: Degrees of parallelism, all resolved.
        embedding: Token embedding.
        layers: One entry per layer.
        head: Final norm and output head.
        teacher: Model of the loss's teacher. None if it has none, or none was found.
        layer_activations: Activations of a layer, if they are known from another layout with the
            same.
        modules: Modules that pipeline stages hold, if they are known.
    """

    run: Recipe
    parallel_dims: ParallelDims
    embedding: ModuleSize
    layers: Sequence[ModuleSize]
    head: ModuleSize
    teacher: ModelConfig | None = None
    layer_activations: LayerActivations | None = None
    modules: Sequence[str] | None = None

    @property
    def storage_bytes(self) -> int:
        """Bytes per element of weights, gradients and optimizer states."""
        return DTYPE_BYTES[self.run.training.dtype]

    @property
    def compute_bytes(self) -> int:
        """Bytes per element of activations and gathered weights."""
        return min(self.storage_bytes, DTYPE_BYTES[self.run.training.mixed_precision_param])

    @property
    def keeps_weights_gathered(self) -> bool:
        """Whether FSDP keeps the weights of all parts gathered after the forward pass."""
        policy = self.run.parallelism.fsdp_reshard_after_forward
        return policy == "never" or (policy == "default" and self.parallel_dims.pp > 1)

    @property
    def tokens_per_forward_pass(self) -> int:
        """Tokens per forward pass on one rank.

        With context parallelism, the rank's share of each sequence.
        """
        return (
            self.run.training.local_batch_size * self.run.training.seq_len // self.parallel_dims.cp
        )

    @property
    def num_forward_passes(self) -> int:
        """Forward passes of one rank per optimizer step."""
        return int(self.run.training.global_batch_size) // (
            self.run.training.local_batch_size * self.parallel_dims.dp_size
        )

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one forward pass in a pipeline, 1 without a pipeline."""
        if self.parallel_dims.pp == 1:
            return 1
        return (
            self.run.training.local_batch_size
            // self.run.parallelism.pipeline_parallel_microbatch_size
        )

    def get_backward_parts(self) -> Sequence[ModuleSize]:
        """Return the parts with a backward pass, in the model's order.

        Those below the first trained weight have none.
        """
        parts = [self.embedding, *self.layers, self.head]
        first = next((i for i, part in enumerate(parts) if part.total_trainable), len(parts))
        return parts[first:]

    def count_backward_layers(self) -> int:
        """Return the number of layers with a backward pass."""
        return min(len(self.layers), max(0, len(self.get_backward_parts()) - 1))

    def get_modules(self) -> Sequence[str]:
        """Return the modules that pipeline stages hold, in the model's order."""
        return self.run.model.module_names() if self.modules is None else self.modules

    def get_sizes_per_rank(self) -> list[list[ModuleSize]]:
        """Return the parts that each pipeline rank keeps, first rank first."""
        return [
            [self.embedding, *parts] if self.lacks_embedding(parts) else parts
            for parts in self.get_stage_sizes_per_rank()
        ]

    def get_stage_sizes_per_rank(self) -> list[list[ModuleSize]]:
        """Return the parts in the stages of each pipeline rank."""
        ranks, section = self.parallel_dims.pp, self.run.parallelism
        if ranks == 1:
            return [[self.embedding, *self.layers, self.head]]
        held = plan_pipeline(section, self.get_modules()).stages
        shape = (
            None
            if section.pipeline_parallel_schedule_csv is not None
            else PIPELINE_SCHEDULES[section.pipeline_parallel_schedule]
        )
        own = [
            get_stages_for_rank(
                rank, ranks, len(held), is_v_shaped=bool(shape and shape.is_v_shaped)
            )
            for rank in range(ranks)
        ]
        return [
            [part for stage in stages for part in self.select_sizes(held[stage])] for stages in own
        ]

    def lacks_embedding(self, parts: Sequence[ModuleSize]) -> bool:
        """Return whether a rank has the tied output head but not the embedding.

        It keeps a copy of the shared matrix.
        """
        has_head, has_embedding = (
            any(part is end for part in parts) for end in (self.head, self.embedding)
        )
        return (
            getattr(self.run.model, "tie_word_embeddings", False) is True
            and has_head
            and not has_embedding
        )

    @property
    def stages_per_rank(self) -> int:
        """Pipeline stages per rank."""
        return (
            len(plan_pipeline(self.run.parallelism, self.get_modules()).stages)
            // self.parallel_dims.pp
        )

    def select_sizes(self, modules: Sequence[str]) -> list[ModuleSize]:
        """Return the parts of a stage with these modules.

        Norm and output head are one part, which belongs to the stage with the head.
        """
        ends = {"tok_embeddings": self.embedding, "output": self.head}
        layers = [
            self.layers[int(name.removeprefix("layers."))]
            for name in modules
            if name.startswith("layers.")
        ]
        before, after = ([ends[name]] if name in modules else [] for name in ends)
        return [*before, *layers, *after]
