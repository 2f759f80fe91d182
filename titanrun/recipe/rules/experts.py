"""Rules about experts and the ranks that hold them."""

from collections.abc import Iterator

from titanrun.config.suggest import listing
from titanrun.distributed.degrees import common_divisors, degrees_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import at

EXPERT, EXPERT_TENSOR = at("expert_parallel_degree"), at("expert_tensor_parallel_degree")


@rule("expert-ranks-need-experts")
def expert_ranks_need_experts(run: Recipe) -> Iterator[Finding]:
    """Only the layers of a mixture of experts are split by expert_parallel_degree: on a dense model it does nothing. Leave it out,
    or take a model with experts."""
    degree = run.parallelism.expert_parallel_degree
    if degree > 1 and run.model.routed_experts() == 0:
        message = f"expert_parallel_degree has no effect: {run.model.name} has no experts to split"
        yield Finding(
            message,
            (EXPERT, ("model", "name"), ("model", "flavor")),
            help="leave it out",
            code="no-effect",
        )


@rule("experts-divide-over-ep")
def experts_divide_over_ep(run: Recipe) -> Iterator[Finding]:
    """Each expert-parallel rank holds the same number of whole experts: expert_parallel_degree must divide model.moe.num_experts."""
    degree, experts = run.parallelism.expert_parallel_degree, run.model.routed_experts()
    if experts % degree:
        fitting = map(str, common_divisors(experts))
        yield Finding(
            f"{experts} experts cannot be split over {degree} expert-parallel ranks",
            (EXPERT, ("model", "moe", "num_experts"), ("model", "flavor")),
            help=f"use an expert_parallel_degree of {listing(fitting)}",
        )


@rule("experts-split-as-matrices")
def experts_split_as_matrices(run: Recipe) -> Iterator[Finding]:
    """The matrices of an expert are either whole (expert_tensor_parallel_degree 1) or split over the same ranks as all others
    (expert_tensor_parallel_degree equal to tensor_parallel_degree)."""
    degree, tensor = (
        run.parallelism.expert_tensor_parallel_degree,
        run.parallelism.tensor_parallel_degree,
    )
    if (
        run.parallelism.expert_parallel_degree > 1
        and degree not in (1, tensor)
        and run.model.routed_experts()
    ):
        yield Finding(
            f"experts cannot be split over {degree} tensor-parallel ranks where other matrices are split over {tensor}",
            (EXPERT_TENSOR, at("tensor_parallel_degree")),
            help="use 1" if tensor == 1 else f"use 1 or {tensor}",
        )


@rule("deepep-needs-whole-experts")
def deepep_needs_whole_experts(run: Recipe) -> Iterator[Finding]:
    """DeepEP carries tokens to whole experts: expert_parallel_comm_backend deepep needs expert_tensor_parallel_degree 1."""
    section = run.parallelism
    if (
        section.expert_parallel_degree > 1
        and section.expert_parallel_comm_backend == "deepep"
        and section.expert_tensor_parallel_degree > 1
    ):
        message = f"DeepEP carries tokens to whole experts, and here {section.expert_tensor_parallel_degree} ranks share one"
        yield Finding(
            message,
            (at("expert_parallel_comm_backend"), EXPERT_TENSOR),
            help="use standard, or expert_tensor_parallel_degree: 1",
        )


@rank_rule("expert-ranks-fit")
def expert_ranks_fit(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """The ranks that hold the experts are borrowed from the shard, context and tensor ranks: data_parallel_shard_degree x
    context_parallel_degree x tensor_parallel_degree must be a multiple of expert_parallel_degree x expert_tensor_parallel_degree."""
    degrees = degrees_of(run.parallelism, ranks)
    if (
        degrees is None
        or degrees.expert == 1
        or degrees.efsdp is not None
        or run.model.routed_experts() == 0
    ):
        return
    lent = degrees.fsdp * degrees.tensor
    yield Finding(
        f"ep {degrees.expert} x etp {degrees.expert_tensor} cannot share the {lent} ranks of "
        f"dp_shard {degrees.shard} x cp {degrees.context} x tp {degrees.tensor}",
        (
            EXPERT,
            EXPERT_TENSOR,
            at("data_parallel_shard_degree"),
            at("context_parallel_degree"),
            at("tensor_parallel_degree"),
        ),
        help=f"use expert degrees whose product divides {lent}",
    )
