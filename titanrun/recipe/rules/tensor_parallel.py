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
