"""What a plan starts from: the run, its ranks, and how much of each part of the model the ranks were seen to hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from titanrun.distributed.degrees import Degrees
from titanrun.distributed.stages import SCHEDULES, plan_pipeline, stages_of_rank
from titanrun.recipe.recipe import Recipe

Numbers: TypeAlias = dict[str, int]
EMBEDDING, HEAD = "tok_embeddings", "head"
BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Part:
    """The embedding, one layer, or norm and output head: elements of the whole, of the part one rank keeps, and gathered to compute; and
    how many of the first two are trained."""

    whole: int
    kept: int
    gathered: int
    whole_trained: int
    trained: int

    def __add__(self, other: "Part") -> "Part":
        return Part(*(getattr(self, field) + getattr(other, field) for field in self.__slots__))


NOTHING = Part(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """A run on a number of ranks.

    Args:
        run: the resolved recipe.
        degrees: of parallelism, all decided.
        embedding: the token embedding.
        layers: one entry a layer.
        head: final norm and output head.
    """

    run: Recipe
    degrees: Degrees
    embedding: Part
    layers: Sequence[Part]
    head: Part

    @property
    def storage_bytes(self) -> int:
        """Bytes of one element of weights, gradients and optimizer states."""
        return BYTES[self.run.training.dtype]

    @property
    def compute_bytes(self) -> int:
        """Bytes of one element of activations and gathered weights."""
        return min(self.storage_bytes, BYTES[self.run.training.mixed_precision_param])

    @property
    def tokens_per_pass(self) -> int:
        """Tokens that one rank sees in a forward pass; its share of each row under context parallelism."""
        return (
            self.run.training.local_batch_size * self.run.training.seq_len // self.degrees.context
        )

    @property
    def passes(self) -> int:
        """Forward passes of one rank in an optimizer step."""
        return int(self.run.training.global_batch_size) // (
            self.run.training.local_batch_size * self.degrees.batch
        )

    @property
    def microbatches(self) -> int:
        """Microbatches that a pipeline cuts one forward pass into; 1 without a pipeline."""
        if self.degrees.pipeline == 1:
            return 1
        return (
            self.run.training.local_batch_size
            // self.run.parallelism.pipeline_parallel_microbatch_size
        )

    def stages(self) -> list[list[Part]]:
        """The parts that each pipeline rank keeps, first rank first."""
        return [
            [self.embedding, *parts] if self.lacks_embedding(parts) else parts
            for parts in self.used()
        ]

    def used(self) -> list[list[Part]]:
        """The parts that the stages of each pipeline rank are made of."""
        ranks, section = self.degrees.pipeline, self.run.parallelism
        if ranks == 1:
            return [[self.embedding, *self.layers, self.head]]
        held = plan_pipeline(section, self.run.model.module_names()).stages
        shape = (
            None
            if section.pipeline_parallel_schedule_csv is not None
            else SCHEDULES[section.pipeline_parallel_schedule]
        )
        own = [
            stages_of_rank(rank, ranks, len(held), v_shaped=bool(shape and shape.v_shaped))
            for rank in range(ranks)
        ]
        return [[part for stage in stages for part in self.parts_of(held[stage])] for stages in own]

    def lacks_embedding(self, parts: Sequence[Part]) -> bool:
        """Whether a rank has the head but not the embedding whose matrix is the head's: it keeps a copy."""
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
        """Pipeline stages of each rank."""
        return (
            len(plan_pipeline(self.run.parallelism, self.run.model.module_names()).stages)
            // self.degrees.pipeline
        )

    def parts_of(self, modules: Sequence[str]) -> list[Part]:
        """The parts that a stage of these modules has; norm and output head are one, with the head."""
        ends = {"tok_embeddings": self.embedding, "output": self.head}
        layers = [
            self.layers[int(name.removeprefix("layers."))]
            for name in modules
            if name.startswith("layers.")
        ]
        before, after = ([ends[name]] if name in modules else [] for name in ends)
        return [*before, *layers, *after]
