"""Rules about the number of ranks, and the degrees of parallelism that divide them."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.config.suggest import listing
from titanrun.config.types import AUTO
from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.degrees import (
    LARGEST_DIVISOR,
    RANK_FIELDS,
    common_divisors,
    degrees_of,
    ranks_beside_shards,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule

SHORT = dict(zip(RANK_FIELDS, ("pp", "dp_replicate", "dp_shard", "cp", "tp"), strict=True))
SHARDS = "data_parallel_shard_degree"


@rank_rule("degrees-fill-ranks")
def degrees_fill_ranks(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """The degrees of parallelism multiply to the number of ranks: data_parallel_replicate_degree x data_parallel_shard_degree x
    context_parallel_degree x tensor_parallel_degree x pipeline_parallel_degree. `data_parallel_shard_degree: auto` takes what the
    others leave, which must be a whole number. The ranks are launch.nproc_per_node, or what --world-size says."""
    section = run.parallelism
    shards, beside = getattr(section, SHARDS), ranks_beside_shards(section)
    taken = beside if shards == AUTO else beside * int(shards)
    if ranks is None or (ranks % taken if shards == AUTO else ranks != taken) == 0:
        return
    names = written_degrees(section)
    degrees = " x ".join(f"{SHORT[name]} {getattr(section, name)}" for name in names)
    left = ranks % taken if shards == AUTO else ranks - taken
    if taken > ranks:
        message = (
            f"{degrees} takes {taken} ranks, and there {'is' if ranks == 1 else 'are'} {ranks}"
        )
    elif shards == AUTO:
        message = (
            f"{ranks} ranks cannot hold {degrees}: {left} {'is' if left == 1 else 'are'} left over"
        )
    else:
        message = f"{degrees or 'dp_shard 1'} takes {taken} of {ranks} ranks: {left} {'is' if left == 1 else 'are'} left over"
    yield Finding(
        message,
        (*map(at, names or [SHARDS]), *where_asked(run, ranks)),
        help=way_out(section, ranks, names),
    )


def at(name: str) -> DataPath:
    """The path of a field of the parallelism section."""
    return ("parallelism", name)


def where_asked(run: Recipe, ranks: int | None) -> tuple[DataPath, ...]:
    """The setting that names the number of ranks, if the recipe does."""
    return (
        (("launch", "nproc_per_node"),) if ranks is not None and run.launch.ranks == ranks else ()
    )


def written_degrees(section: ParallelismConfig) -> list[str]:
    """The fields that take ranks of their own."""
    return [name for name in RANK_FIELDS if getattr(section, name) not in (1, AUTO)]


def way_out(section: ParallelismConfig, ranks: int, names: list[str]) -> str:
    """What degrees the ranks can hold."""
    if getattr(section, SHARDS) != AUTO and ranks % ranks_beside_shards(section) == 0:
        return f"use data_parallel_shard_degree: {ranks // ranks_beside_shards(section)}, or auto"
    others = [name for name in names if name != SHARDS]
    if len(others) != 1:
        return (
            f"use degrees whose product divides {ranks}, and leave data_parallel_shard_degree: auto"
        )
    fitting = [str(degree) for degree in common_divisors(ranks) if degree <= 64]
    return f"use a {others[0]} of {listing(fitting)}, and leave data_parallel_shard_degree: auto"


@rank_rule("nodes-hold-ranks")
def nodes_hold_ranks(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """Every node starts launch.nproc_per_node processes, so that the number given by --world-size must be a multiple of it. Change one
    of them, or leave launch.nproc_per_node: auto. With launch.nnodes above 1 it is the product of the two, as the launchers start it."""
    each = getattr(run.launch, "nproc_per_node", AUTO)
    if ranks is None:
        return
    if run.launch.nodes > 1 and ranks != (run.launch.ranks or ranks - ranks % run.launch.nodes):
        each_starts = "the same number" if each == AUTO else each
        message = f"{ranks} ranks are not what {run.launch.nodes} machines make that start {each_starts} each"
        yield Finding(
            message,
            (("launch", "nnodes"), ("launch", "nproc_per_node")),
            help="start the same command on each, or change launch.nnodes",
        )
    elif each != AUTO and ranks % int(each):
        message = f"{ranks} ranks cannot be started {each} on a node"
        yield Finding(
            message,
            (("launch", "nproc_per_node"),),
            help=f"ask for a multiple of {each} ranks, or use auto",
        )


@rank_rule("batch-sizes-divide")
def batch_sizes_divide(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """One optimizer step takes a whole number of forward passes: global_batch_size must be a multiple of local_batch_size
    times the data-parallel ranks (data_parallel_replicate_degree x data_parallel_shard_degree). Change any of them."""
    degrees = degrees_of(run.parallelism, ranks)
    readers = degrees.batch if degrees else run.parallelism.data_parallel_replicate_degree
    local, total = run.training.local_batch_size, int(run.training.global_batch_size)
    paths: tuple[DataPath, ...] = (
        ("training", "global_batch_size"),
        ("training", "local_batch_size"),
    )
    if total % local:
        divisors = (
            [str(size) for size in common_divisors(total)] if total <= LARGEST_DIVISOR else []
        )
        yield Finding(
            f"a global batch of {total} rows cannot be split into passes of {local}",
            paths,
            help=f"use a local_batch_size of {listing(divisors)}"
            if divisors
            else "make global_batch_size a multiple",
        )
    elif total % (local * readers):
        yield Finding(
            f"a global batch of {total} rows cannot be split over {readers} data-parallel ranks in passes of {local}",
            (*paths, at("data_parallel_replicate_degree"), at(SHARDS), *where_asked(run, ranks)),
            help=f"make global_batch_size a multiple of {local * readers}",
        )


@rank_rule("replicas-stand-alone")
def replicas_stand_alone(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """Whole copies of the model (DDP: data_parallel_replicate_degree without shards) combine with a pipeline, but not with tensor
    parallelism. Let each copy be shared by some ranks (HSDP: data_parallel_shard_degree above 1), or drop the other degree."""
    degrees = degrees_of(run.parallelism, ranks)
    if degrees is None or degrees.replicate == 1 or degrees.fsdp > 1:
        return
    if degrees.tensor > 1:
        yield Finding(
            f"{degrees.replicate} whole copies of the model (DDP) cannot each be split over {degrees.tensor} tensor-parallel ranks",
            (at("data_parallel_replicate_degree"), at("tensor_parallel_degree"), at(SHARDS)),
            help="set data_parallel_shard_degree above 1 (HSDP), or use shards instead of copies",
        )
