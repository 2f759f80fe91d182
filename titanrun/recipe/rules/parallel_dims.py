"""Rules about the number of ranks and the degrees of parallelism."""

from collections.abc import Iterator
from math import gcd

from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath
from titanrun.config.suggest import format_word_list
from titanrun.config.types import AUTO
from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.spec.parallel_dims import (
    MAX_DIVISOR,
    PARALLEL_DEGREE_FIELDS,
    compute_common_divisors,
    compute_non_shard_degree,
    resolve_parallel_dims,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rank_rule

SHORT_DEGREE_NAMES = dict(
    zip(PARALLEL_DEGREE_FIELDS, ("pp", "dp_replicate", "dp_shard", "cp", "tp"), strict=True)
)
SHARDS = "data_parallel_shard_degree"


@rank_rule("degrees-fill-ranks")
def degrees_fill_ranks(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require the degrees of parallelism to multiply to the number of ranks.

    The product is data_parallel_replicate_degree x data_parallel_shard_degree x
    context_parallel_degree x tensor_parallel_degree x pipeline_parallel_degree.
    `data_parallel_shard_degree: auto` is the number of ranks divided by the other degrees, which
    must be a whole number. The number of ranks is launch.nproc_per_node, or the value of
    --world-size.
    """
    section = run.parallelism
    shards, others = getattr(section, SHARDS), compute_non_shard_degree(section)
    needed = others if shards == AUTO else others * int(shards)
    if ranks is None or (ranks % needed if shards == AUTO else ranks != needed) == 0:
        return
    names = get_written_degrees(section)
    degrees = " x ".join(f"{SHORT_DEGREE_NAMES[name]} {getattr(section, name)}" for name in names)
    if shards == AUTO and needed <= ranks:
        message = f"world_size {ranks} is not divisible by {needed} ({degrees})"
    else:
        count = pluralize(needed, "rank")
        message = f"{degrees or 'dp_shard 1'} needs {count}, but world_size is {ranks}"
    yield RuleViolation(
        message,
        (*map(get_parallelism_path, names or [SHARDS]), *find_ranks_setting(run, ranks)),
        hint=suggest_ranks(run, needed, ranks) + suggest_degrees(section, ranks, names),
    )


def get_parallelism_path(name: str) -> DataPath:
    """Return the path of a field of the parallelism section."""
    return ("parallelism", name)


def find_ranks_setting(run: Recipe, ranks: int | None) -> tuple[DataPath, ...]:
    """Return the path of the setting for the number of ranks, if the recipe has one."""
    return (
        (("launch", "nproc_per_node"),)
        if ranks is not None and run.launch.world_size == ranks
        else ()
    )


def get_written_degrees(section: ParallelismConfig) -> list[str]:
    """Return the fields of degrees that are neither 1 nor auto."""
    return [name for name in PARALLEL_DEGREE_FIELDS if getattr(section, name) not in (1, AUTO)]


def suggest_ranks(run: Recipe, needed: int, ranks: int) -> str:
    """Return how to start as many processes as the degrees need, on one machine of this run.

    That is the beginning of a hint, empty where another number of machines may be the better way.
    """
    if run.launch.is_submitted or run.launch.num_nodes > 1 or ranks > 1:
        return ""
    return f"start {needed} processes, titanrun train RECIPE --nproc {needed}; or "


def suggest_degrees(section: ParallelismConfig, ranks: int, names: list[str]) -> str:
    """Return a hint about degrees that fit the number of ranks."""
    if getattr(section, SHARDS) != AUTO and ranks % compute_non_shard_degree(section) == 0:
        return (
            f"use data_parallel_shard_degree: {ranks // compute_non_shard_degree(section)}, or auto"
        )
    others = [name for name in names if name != SHARDS]
    if len(others) != 1:
        return f"use degrees whose product divides {ranks}, and data_parallel_shard_degree: auto"
    fitting = [str(degree) for degree in compute_common_divisors(ranks) if degree <= 64]
    return f"use a {others[0]} of {format_word_list(fitting)}, and data_parallel_shard_degree: auto"


@rank_rule("nodes-hold-ranks")
def nodes_hold_ranks(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require the number of ranks to be divisible by launch.nproc_per_node.

    Every node starts launch.nproc_per_node processes, so that the number given by --world-size must
    be a multiple of it. Change one of them, or use launch.nproc_per_node: auto. With launch.nnodes
    above 1 the number of ranks is the product of the two, because the launchers start that many.
    """
    each = getattr(run.launch, "nproc_per_node", AUTO)
    if ranks is None:
        return
    if run.launch.num_nodes > 1 and ranks != (
        run.launch.world_size or ranks - ranks % run.launch.num_nodes
    ):
        message = (
            f"world_size {ranks} is not divisible by nnodes {run.launch.num_nodes}"
            if each == AUTO
            else f"world_size {ranks} is not nnodes {run.launch.num_nodes} x nproc_per_node {each}"
        )
        yield RuleViolation(
            message,
            (("launch", "nnodes"), ("launch", "nproc_per_node")),
            hint="run the same command on each node, or change launch.nnodes",
        )
    elif each != AUTO and ranks % int(each):
        message = f"world_size {ranks} is not divisible by nproc_per_node {each}"
        yield RuleViolation(
            message,
            (("launch", "nproc_per_node"),),
            hint=f"use a multiple of {each} ranks, or auto",
        )


@rank_rule("batch-sizes-divide")
def batch_sizes_divide(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require global_batch_size to be divisible by the batch of one forward pass.

    One optimizer step takes a whole number of forward passes: global_batch_size must be a multiple
    of local_batch_size times the data-parallel ranks (data_parallel_replicate_degree x
    data_parallel_shard_degree). Change any of them.
    """
    degrees = resolve_parallel_dims(run.parallelism, ranks)
    dp_size = degrees.dp_size if degrees else run.parallelism.data_parallel_replicate_degree
    local, total = run.training.local_batch_size, int(run.training.global_batch_size)
    paths: tuple[DataPath, ...] = (
        ("training", "global_batch_size"),
        ("training", "local_batch_size"),
    )
    if total % local:
        divisors = (
            [str(size) for size in compute_common_divisors(total)] if total <= MAX_DIVISOR else []
        )
        yield RuleViolation(
            f"global_batch_size {total} is not divisible by local_batch_size {local}",
            paths,
            hint=f"use a local_batch_size of {format_word_list(divisors)}"
            if divisors and dp_size == 1
            else suggest_batch_sizes(local, total, dp_size),
        )
    elif total % (local * dp_size):
        yield RuleViolation(
            f"global_batch_size {total} is not divisible by {local * dp_size} "
            f"(local_batch_size {local} x {dp_size} data-parallel ranks)",
            (
                *paths,
                get_parallelism_path("data_parallel_replicate_degree"),
                get_parallelism_path(SHARDS),
                *find_ranks_setting(run, ranks),
            ),
            hint=suggest_batch_sizes(local, total, dp_size),
        )


def suggest_batch_sizes(local: int, total: int, dp_size: int) -> str:
    """Return batch sizes near the written ones that divide over the data-parallel ranks."""
    each_pass = local * dp_size
    near = max(1, round(total / each_pass)) * each_pass
    sizes = "training.local_batch_size={} training.global_batch_size={}"
    others = f"{sizes.format(local, near)}, or another multiple of {each_pass}"
    if total % dp_size:
        return f"use {others}"
    fitting = sizes.format(gcd(local, total // dp_size), total)
    return f"use {fitting}, which is as many sequences a step; or {others}"


@rank_rule("replicas-stand-alone")
def replicas_stand_alone(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require shards for replicas with tensor parallelism.

    Whole replicas of the model (DDP: data_parallel_replicate_degree without shards) can be combined
    with a pipeline, but not with tensor parallelism. Shard each replica over some ranks (HSDP:
    data_parallel_shard_degree above 1), or set the other degree to 1.
    """
    degrees = resolve_parallel_dims(run.parallelism, ranks)
    if degrees is None or degrees.dp_replicate == 1 or degrees.fsdp_size > 1:
        return
    if degrees.tp > 1:
        yield RuleViolation(
            f"dp_replicate {degrees.dp_replicate} without shards (DDP) does not "
            f"support tensor_parallel_degree {degrees.tp}",
            (
                get_parallelism_path("data_parallel_replicate_degree"),
                get_parallelism_path("tensor_parallel_degree"),
                get_parallelism_path(SHARDS),
            ),
            hint="set data_parallel_shard_degree above 1 (HSDP), or use shards instead of replicas",
        )
