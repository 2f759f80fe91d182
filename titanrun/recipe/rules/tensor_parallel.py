"""Rules about tensor parallelism."""

from collections.abc import Iterator

from titanrun.config.suggest import format_word_list
from titanrun.distributed.spec.parallel_dims import compute_common_divisors
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule


@rule("heads-divide-over-tp")
def heads_divide_over_tp(run: Recipe) -> Iterator[RuleViolation]:
    """Require n_heads and n_kv_heads to be divisible by tensor_parallel_degree.

    Each tensor-parallel rank computes whole attention heads: the degree must divide the number of
    query heads, and of key and value heads. Use a degree that divides both.
    """
    degree, counts = run.parallelism.tensor_parallel_degree, run.model.head_counts()
    fitting = [str(size) for size in compute_common_divisors(*counts.values())]
    reported: set[int] = set()
    for name, count in counts.items():
        if count % degree and count not in reported:
            reported.add(count)
            yield RuleViolation(
                f"{name} {count} is not divisible by tensor_parallel_degree {degree}",
                (("parallelism", "tensor_parallel_degree"), ("model", name), ("model", "flavor")),
                hint=f"use a tensor_parallel_degree of {format_word_list(fitting)}",
            )


@rule("widths-divide-over-tp")
def widths_divide_over_tp(run: Recipe) -> Iterator[RuleViolation]:
    """Require hidden_dim to be divisible by tensor_parallel_degree.

    Tensor-parallel ranks share the hidden layer of each feed-forward layer, and of each expert that
    they split, in equal parts. Use a degree that divides it, or another hidden_dim.
    """
    section = run.parallelism
    degree = section.tensor_parallel_degree
    keeps_experts = (
        section.expert_parallel_degree > 1 and section.expert_tensor_parallel_degree == 1
    )
    for part, width in run.model.get_hidden_dims().items() if degree > 1 else ():
        if width % degree and not (part == "moe" and keeps_experts and not has_shared_experts(run)):
            fitting = [
                str(size)
                for size in compute_common_divisors(width, *run.model.head_counts().values())
            ]
            yield RuleViolation(
                f"{part}.hidden_dim {width} is not divisible by tensor_parallel_degree {degree}",
                (
                    ("parallelism", "tensor_parallel_degree"),
                    ("model", part, "hidden_dim"),
                    ("model", "flavor"),
                ),
                hint=f"use a tensor_parallel_degree of {format_word_list(fitting)}",
            )


def has_shared_experts(run: Recipe) -> bool:
    """Return whether each mixture of experts has shared experts.

    A shared expert processes every token, and is split like a feed-forward layer.
    """
    return bool(getattr(getattr(run.model, "moe", None), "num_shared_experts", 0))


@rule("class-splits-over-tp")
def class_splits_over_tp(run: Recipe) -> Iterator[RuleViolation]:
    """Require a transformers class to support tensor_parallel_degree.

    It is split by the plan that it ships, if it has one that titanrun supports and whose matrices
    and heads can be split evenly. Use data_parallel_shard_degree, or a degree that divides them.
    """
    degree = run.parallelism.tensor_parallel_degree
    obstacle = run.model.find_tensor_parallel_obstacle(degree) if degree > 1 else None
    if obstacle is not None:
        places = (("parallelism", "tensor_parallel_degree"), ("model", "name"))
        yield RuleViolation(
            f"tensor_parallel_degree {degree} does not fit {obstacle}",
            places,
            hint="shard its weights with data_parallel_shard_degree",
        )


@rule("class-keeps-stream-whole")
def class_keeps_stream_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Require enable_sequence_parallel: false for tensor-parallel transformers classes.

    The plan that such a class ships keeps the whole residual stream on each tensor-parallel rank.
    """
    section = run.parallelism
    if (
        section.tensor_parallel_degree > 1
        and section.enable_sequence_parallel
        and not run.model.supports_sequence_parallel
    ):
        places = (
            ("parallelism", "enable_sequence_parallel"),
            ("parallelism", "tensor_parallel_degree"),
            ("model", "name"),
        )
        message = f"model '{run.model.name}' does not support sequence parallelism"
        yield RuleViolation(message, places, hint="set enable_sequence_parallel: false")
