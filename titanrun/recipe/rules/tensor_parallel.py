"""Rules about tensor parallelism."""

from collections.abc import Iterator

from titanrun.config.suggest import listing
from titanrun.distributed.degrees import common_divisors
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule

HEADS = {"n_heads": "query heads", "n_kv_heads": "key and value heads"}


@rule("heads-divide-over-tp")
def heads_divide_over_tp(run: Recipe) -> Iterator[Finding]:
    """Each tensor-parallel rank computes whole attention heads: tensor_parallel_degree must divide the number of query heads, and
    of key and value heads. Use a degree that divides both."""
    degree, counts = run.parallelism.tensor_parallel_degree, run.model.heads()
    fitting = [str(size) for size in common_divisors(*counts.values())]
    told: set[int] = set()
    for name, count in counts.items():
        if count % degree and count not in told:
            told.add(count)
            yield Finding(
                f"{count} {HEADS[name]} cannot be split over {degree} tensor-parallel ranks",
                (("parallelism", "tensor_parallel_degree"), ("model", name), ("model", "flavor")),
                help=f"use a tensor_parallel_degree of {listing(fitting)}",
            )


@rule("widths-divide-over-tp")
def widths_divide_over_tp(run: Recipe) -> Iterator[Finding]:
    """Tensor-parallel ranks share the hidden layer of each feed-forward layer, and of each expert that they split, in equal parts:
    tensor_parallel_degree must divide its hidden_dim. Use a degree that divides it, or another width."""
    section = run.parallelism
    degree = section.tensor_parallel_degree
    keeps_experts = (
        section.expert_parallel_degree > 1 and section.expert_tensor_parallel_degree == 1
    )
    for part, width in run.model.hidden_widths().items() if degree > 1 else ():
        if width % degree and not (part == "moe" and keeps_experts and not shares_experts(run)):
            fitting = [str(size) for size in common_divisors(width, *run.model.heads().values())]
            yield Finding(
                f"a hidden layer of width {width} cannot be split over {degree} tensor-parallel ranks",
                (
                    ("parallelism", "tensor_parallel_degree"),
                    ("model", part, "hidden_dim"),
                    ("model", "flavor"),
                ),
                help=f"use a tensor_parallel_degree of {listing(fitting)}",
            )


def shares_experts(run: Recipe) -> bool:
    """Whether each mixture of experts has one for every token, which is split like a feed-forward layer."""
    return bool(getattr(getattr(run.model, "moe", None), "num_shared_experts", 0))


@rule("class-splits-over-tp")
def class_splits_over_tp(run: Recipe) -> Iterator[Finding]:
    """A class of transformers is split over tensor-parallel ranks by the plan that it ships, if it has one that is understood and whose
    matrices and heads are so many equal parts. Use data_parallel_shard_degree, or a degree that divides them."""
    degree = run.parallelism.tensor_parallel_degree
    obstacle = run.model.split_obstacle(degree) if degree > 1 else None
    if obstacle is not None:
        places = (("parallelism", "tensor_parallel_degree"), ("model", "name"))
        yield Finding(
            f"{degree} tensor-parallel ranks cannot share {obstacle}",
            places,
            help="share its weights with data_parallel_shard_degree",
        )


@rule("class-keeps-stream-whole")
def class_keeps_stream_whole(run: Recipe) -> Iterator[Finding]:
    """The plan that a class of transformers ships leaves the residual stream whole on each tensor-parallel rank. Set
    enable_sequence_parallel: false."""
    section = run.parallelism
    if (
        section.tensor_parallel_degree > 1
        and section.enable_sequence_parallel
        and not run.model.splits_stream
    ):
        places = (
            ("parallelism", "enable_sequence_parallel"),
            ("parallelism", "tensor_parallel_degree"),
            ("model", "name"),
        )
        message = f"a {run.model.name} model has no sequence parallelism: each tensor-parallel rank holds the whole stream"
        yield Finding(message, places, help="set enable_sequence_parallel: false")
