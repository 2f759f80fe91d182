"""Rules about experts and the ranks that hold them."""

from collections.abc import Iterator

from titanrun.config.suggest import format_word_list
from titanrun.distributed.spec.parallel_dims import compute_common_divisors, resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule

EXPERT, EXPERT_TENSOR = (
    get_parallelism_path("expert_parallel_degree"),
    get_parallelism_path("expert_tensor_parallel_degree"),
)


@rule("expert-ranks-need-experts")
def expert_ranks_need_experts(run: Recipe) -> Iterator[RuleViolation]:
    """Require a model with experts if expert_parallel_degree is above 1.

    expert_parallel_degree splits the layers of a mixture of experts only: it has no effect on a
    dense model. Remove it, or use a model with experts.
    """
    degree = run.parallelism.expert_parallel_degree
    if degree > 1 and run.model.count_routed_experts() == 0:
        message = f"expert_parallel_degree has no effect: {run.model.name} has no experts to split"
        yield RuleViolation(
            message,
            (EXPERT, ("model", "name"), ("model", "flavor")),
            hint="remove it",
            code="no-effect",
        )


@rule("experts-divide-over-ep")
def experts_divide_over_ep(run: Recipe) -> Iterator[RuleViolation]:
    """Require model.moe.num_experts to be divisible by expert_parallel_degree.

    Each expert-parallel rank holds the same number of whole experts. Use a degree that divides
    num_experts.
    """
    degree, experts = run.parallelism.expert_parallel_degree, run.model.count_routed_experts()
    if experts % degree:
        fitting = map(str, compute_common_divisors(experts))
        yield RuleViolation(
            f"num_experts {experts} is not divisible by expert_parallel_degree {degree}",
            (EXPERT, ("model", "moe", "num_experts"), ("model", "flavor")),
            hint=f"use an expert_parallel_degree of {format_word_list(fitting)}",
        )


@rule("experts-split-as-matrices")
def experts_split_as_matrices(run: Recipe) -> Iterator[RuleViolation]:
    """Require expert_tensor_parallel_degree to be 1 or tensor_parallel_degree.

    The matrices of an expert are either whole (expert_tensor_parallel_degree 1) or split over the
    same ranks as all other matrices (expert_tensor_parallel_degree equal to
    tensor_parallel_degree).
    """
    degree, tensor = (
        run.parallelism.expert_tensor_parallel_degree,
        run.parallelism.tensor_parallel_degree,
    )
    if (
        run.parallelism.expert_parallel_degree > 1
        and degree not in (1, tensor)
        and run.model.count_routed_experts()
    ):
        yield RuleViolation(
            f"expert_tensor_parallel_degree {degree} is neither 1 nor "
            f"tensor_parallel_degree {tensor}",
            (EXPERT_TENSOR, get_parallelism_path("tensor_parallel_degree")),
            hint="use 1" if tensor == 1 else f"use 1 or {tensor}",
        )


@rule("deepep-needs-whole-experts")
def deepep_needs_whole_experts(run: Recipe) -> Iterator[RuleViolation]:
    """Require expert_tensor_parallel_degree 1 with DeepEP.

    expert_parallel_comm_backend deepep sends tokens to whole experts. Use standard, or set
    expert_tensor_parallel_degree to 1.
    """
    section = run.parallelism
    if (
        section.expert_parallel_degree > 1
        and section.expert_parallel_comm_backend == "deepep"
        and section.expert_tensor_parallel_degree > 1
    ):
        message = (
            "deepep does not support expert_tensor_parallel_degree "
            f"{section.expert_tensor_parallel_degree}: it needs whole experts"
        )
        yield RuleViolation(
            message,
            (get_parallelism_path("expert_parallel_comm_backend"), EXPERT_TENSOR),
            hint="use standard, or expert_tensor_parallel_degree: 1",
        )


@rank_rule("expert-ranks-fit")
def expert_ranks_fit(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require the expert ranks to divide the shard, context and tensor ranks.

    The ranks that hold the experts are the shard, context and tensor ranks:
    data_parallel_shard_degree x context_parallel_degree x tensor_parallel_degree must be a multiple
    of expert_parallel_degree x expert_tensor_parallel_degree.
    """
    degrees = resolve_parallel_dims(run.parallelism, ranks)
    if (
        degrees is None
        or degrees.ep == 1
        or degrees.efsdp_size is not None
        or run.model.count_routed_experts() == 0
    ):
        return
    shared_ranks = degrees.fsdp_size * degrees.tp
    yield RuleViolation(
        f"dp_shard {degrees.dp_shard} x cp {degrees.cp} x tp {degrees.tp} = {shared_ranks} "
        f"is not divisible by ep {degrees.ep} x etp {degrees.etp}",
        (
            EXPERT,
            EXPERT_TENSOR,
            get_parallelism_path("data_parallel_shard_degree"),
            get_parallelism_path("context_parallel_degree"),
            get_parallelism_path("tensor_parallel_degree"),
        ),
        hint=f"use expert degrees whose product divides {shared_ranks}",
    )
