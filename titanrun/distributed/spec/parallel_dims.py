"""Degrees of parallelism and the mesh sizes that follow from them."""

from dataclasses import dataclass
from math import gcd

from titanrun.config.types import AUTO
from titanrun.distributed.config import ParallelismConfig

# the fields of the parallelism section whose product is the number of ranks, outermost mesh axis
# first
PARALLEL_DEGREE_FIELDS = (
    "pipeline_parallel_degree",
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "context_parallel_degree",
    "tensor_parallel_degree",
)
# a count may have 64 bits, but no run has more ranks than this
MAX_DIVISOR = 4096


def compute_common_divisors(*counts: int) -> list[int]:
    """Return the common divisors of the counts, up to MAX_DIVISOR."""
    shared = gcd(*counts)
    return [size for size in range(1, min(shared, MAX_DIVISOR) + 1) if shared % size == 0]


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Sizes of all parallel dimensions.

    The experts use ranks of the shard, context and tensor axes.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def dp_size(self) -> int:
        """Number of ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    def get_dp_rank(self, rank: int) -> int:
        """Return the data-parallel rank: the part of each global batch that a rank reads."""
        return rank // (self.cp * self.tp) % self.dp_size

    def get_pp_rank(self, rank: int) -> int:
        """Return the pipeline rank."""
        return rank * self.pp // self.world_size

    @property
    def loss_size(self) -> int:
        """Number of ranks whose losses cover different tokens."""
        return self.dp_size * self.cp

    @property
    def fsdp_size(self) -> int:
        """Number of ranks that share one copy of the dense weights."""
        return self.dp_shard * self.cp

    @property
    def expert_group_size(self) -> int:
        """Number of ranks that hold all experts of a layer together."""
        return self.ep * self.etp

    @property
    def efsdp_size(self) -> int | None:
        """Number of ranks that share one copy of an expert.

        None if the expert ranks do not divide the ranks evenly.
        """
        whole, left = divmod(self.fsdp_size * self.tp, self.expert_group_size)
        return None if left or not whole else whole


def resolve_parallel_dims(
    section: ParallelismConfig, world_size: int | None
) -> ParallelDims | None:
    """Return the dimensions of a recipe that runs on `world_size` processes.

    Return None if the shard degree is `auto` and cannot be determined.
    """
    shard = section.data_parallel_shard_degree
    if shard == AUTO:
        if world_size is None or world_size % compute_non_shard_degree(section):
            return None
        shard = world_size // compute_non_shard_degree(section)
    return ParallelDims(
        pp=section.pipeline_parallel_degree,
        dp_replicate=section.data_parallel_replicate_degree,
        dp_shard=int(shard),
        cp=section.context_parallel_degree,
        tp=section.tensor_parallel_degree,
        ep=section.expert_parallel_degree,
        etp=section.expert_tensor_parallel_degree,
    )


def get_cp_chunks_per_rank(section: ParallelismConfig) -> int:
    """Return the number of chunks of each sequence that a context-parallel rank has.

    headtail assigns one chunk from the head and one from the tail of the sequence.
    """
    return 2 if section.context_parallel_load_balancer == "headtail" else 1


def compute_non_shard_degree(section: ParallelismConfig) -> int:
    """Return the product of all degrees but the shard degree.

    `data_parallel_shard_degree: auto` divides the ranks by it.
    """
    return (
        section.pipeline_parallel_degree
        * section.data_parallel_replicate_degree
        * section.context_parallel_degree
        * section.tensor_parallel_degree
    )
