"""Degrees of parallelism: the ranks they take, and the size of every mesh that follows from them."""

from dataclasses import dataclass
from math import gcd

from titanrun.config.types import AUTO
from titanrun.distributed.config import ParallelismConfig

# the fields of the parallelism section whose product is the number of ranks, outermost mesh axis first
RANK_FIELDS = (
    "pipeline_parallel_degree",
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "context_parallel_degree",
    "tensor_parallel_degree",
)
# a count may have 64 bits, and nobody has more ranks than this
LARGEST_DIVISOR = 4096


def common_divisors(*counts: int) -> list[int]:
    """What divides all of the counts, up to LARGEST_DIVISOR."""
    shared = gcd(*counts)
    return [size for size in range(1, min(shared, LARGEST_DIVISOR) + 1) if shared % size == 0]


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the ranks are divided, every degree known. Experts borrow their ranks from the shard, context and tensor axes."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1

    @property
    def ranks(self) -> int:
        """All ranks of the run."""
        return self.pipeline * self.replicate * self.shard * self.context * self.tensor

    @property
    def batch(self) -> int:
        """Ranks that read different rows."""
        return self.replicate * self.shard

    @property
    def loss(self) -> int:
        """Ranks whose losses cover different tokens."""
        return self.batch * self.context

    @property
    def fsdp(self) -> int:
        """Ranks that share one copy of the dense weights."""
        return self.shard * self.context

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold all experts of a layer together."""
        return self.expert * self.expert_tensor

    @property
    def efsdp(self) -> int | None:
        """Ranks that share one copy of an expert; None where the expert ranks do not fit a whole number of times."""
        whole, left = divmod(self.fsdp * self.tensor, self.expert_ranks)
        return None if left or not whole else whole


def degrees_of(section: ParallelismConfig, ranks: int | None) -> Degrees | None:
    """The degrees of a recipe that runs on `ranks` processes; None where the shard degree is `auto` and nothing decides it."""
    shard = section.data_parallel_shard_degree
    if shard == AUTO:
        if ranks is None or ranks % ranks_beside_shards(section):
            return None
        shard = ranks // ranks_beside_shards(section)
    return Degrees(
        pipeline=section.pipeline_parallel_degree,
        replicate=section.data_parallel_replicate_degree,
        shard=int(shard),
        context=section.context_parallel_degree,
        tensor=section.tensor_parallel_degree,
        expert=section.expert_parallel_degree,
        expert_tensor=section.expert_tensor_parallel_degree,
    )


def pieces_per_rank(section: ParallelismConfig) -> int:
    """Pieces of each row that a context-parallel rank has: headtail gives it one from the row's head and one from its tail."""
    return 2 if section.context_parallel_load_balancer == "headtail" else 1


def ranks_beside_shards(section: ParallelismConfig) -> int:
    """The product of all degrees but the shards: what `data_parallel_shard_degree: auto` divides the ranks by."""
    return (
        section.pipeline_parallel_degree
        * section.data_parallel_replicate_degree
        * section.context_parallel_degree
        * section.tensor_parallel_degree
    )
