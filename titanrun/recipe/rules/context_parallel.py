"""Rules about rows that several ranks share: context parallelism, and the sequence parallelism beside tensor parallelism."""

from collections.abc import Iterator
from math import lcm

from titanrun.config.problems import DataPath
from titanrun.config.suggest import listing
from titanrun.distributed.degrees import common_divisors, pieces_per_rank
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.attention import BACKEND, attention_backend
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at
from titanrun.recipe.rules.tensor_parallel import HEADS

CONTEXT, TENSOR, SEQUENCE = (
    at("context_parallel_degree"),
    at("tensor_parallel_degree"),
    at("enable_sequence_parallel"),
)
BALANCER, METHOD = at("context_parallel_load_balancer"), at("context_parallel_rotate_method")


def row_lengths(run: Recipe) -> dict[DataPath, int]:
    """The lengths of the rows that pass through the model, by the setting that names them."""
    lengths: dict[DataPath, int] = {("training", "seq_len"): run.training.seq_len}
    if run.validation.enable and run.validation.seq_len != run.training.seq_len:
        lengths["validation", "seq_len"] = int(run.validation.seq_len)
    return lengths


def next_multiple(length: int, unit: int) -> int:
    """The first multiple of `unit` from `length` on."""
    return -(-length // unit) * unit


@rule("rows-divide-over-cp")
def rows_divide_over_cp(run: Recipe) -> Iterator[Finding]:
    """Context-parallel ranks share each row: seq_len must be a multiple of context_parallel_degree, and of twice that with the load
    balancer headtail, which gives each rank a piece from the row's head and one from its tail. Rows of pictures have a rule of their
    own."""
    if run.model.takes == "images":
        return
    degree, pieces = run.parallelism.context_parallel_degree, pieces_per_rank(run.parallelism)
    unit = degree * pieces
    for path, length in row_lengths(run).items():
        if degree > 1 and length % unit:
            each = ", two pieces each" if pieces > 1 else ""
            yield Finding(
                f"rows of {length} tokens cannot be split over {degree} context-parallel ranks{each}",
                (path, CONTEXT, BALANCER),
                help=f"make {path[-1]} a multiple of {unit}, such as {next_multiple(length, unit)}",
            )


@rule("heads-divide-over-cp")
def heads_divide_over_cp(run: Recipe) -> Iterator[Finding]:
    """With context_parallel_rotate_method alltoall each context-parallel rank computes whole attention heads: context_parallel_degree x
    tensor_parallel_degree must divide the number of query heads, and of key and value heads. allgather works with any number."""
    section, counts = run.parallelism, run.model.heads()
    degree, tensor = section.context_parallel_degree, section.tensor_parallel_degree
    if (
        degree == 1
        or section.context_parallel_rotate_method != "alltoall"
        or any(count % tensor for count in counts.values())
    ):
        return
    fitting = [
        str(size)
        for size in common_divisors(*(count // tensor for count in counts.values()))
        if size > 1
    ]
    ranks = (
        f"{degree} context-parallel ranks"
        if tensor == 1
        else f"{degree} context-parallel x {tensor} tensor-parallel ranks"
    )
    told: set[int] = set()
    for name, count in counts.items():
        if count % (degree * tensor) and count not in told:
            told.add(count)
            others = f", or a context_parallel_degree of {listing(fitting)}" if fitting else ""
            yield Finding(
                f"{count} {HEADS[name]} cannot be split over {ranks}",
                (METHOD, CONTEXT, TENSOR, ("model", name), ("model", "flavor")),
                help=f"use context_parallel_rotate_method: allgather{others}",
            )


@rule("rows-divide-over-tp")
def rows_divide_over_tp(run: Recipe) -> Iterator[Finding]:
    """Sequence parallelism splits each row, or what context parallelism leaves of it, over the tensor-parallel ranks: seq_len /
    context_parallel_degree must be a multiple of tensor_parallel_degree. Change the length, or set enable_sequence_parallel: false."""
    tensor, context = (
        run.parallelism.tensor_parallel_degree,
        run.parallelism.context_parallel_degree,
    )
    for path, length in row_lengths(run).items():
        if (
            run.parallelism.enable_sequence_parallel
            and length % context == 0
            and (length // context) % tensor
        ):
            unit = context * lcm(tensor, pieces_per_rank(run.parallelism) if context > 1 else 1)
            piece = (
                f"rows of {length} tokens"
                if context == 1
                else f"pieces of {length // context} tokens"
            )
            yield Finding(
                f"{piece} cannot be split over {tensor} tensor-parallel ranks",
                (path, TENSOR, CONTEXT, SEQUENCE),
                help=f"make {path[-1]} a multiple of {unit}, such as {next_multiple(length, unit)}, or set enable_sequence_parallel: false",
            )


@rule("balancer-needs-flex")
def balancer_needs_flex(run: Recipe) -> Iterator[Finding]:
    """The load balancer ptrr deals tokens by the blocks of a flex attention mask: it needs model.attention.backend flex, and is not
    built yet. headtail works with every back end."""
    backend = attention_backend(run)
    section = run.parallelism
    if section.context_parallel_degree == 1 or section.context_parallel_load_balancer != "ptrr":
        return
    if backend == "flex":
        yield Finding(
            "the load balancer ptrr is not built yet",
            (BALANCER,),
            help="use headtail",
            code="not-built",
        )
    else:
        message = (
            f"the load balancer ptrr needs flex attention, and the model has {backend or 'none'}"
        )
        yield Finding(message, (BALANCER, BACKEND, ("model", "flavor")), help="use headtail")


@rule("varlen-excludes-cp")
def varlen_excludes_cp(run: Recipe) -> Iterator[Finding]:
    """varlen attention has no keys without queries, as context_parallel_rotate_method allgather gives each context-parallel rank: use
    alltoall, which gives it whole rows of some heads, or the back end flex."""
    section = run.parallelism
    if (
        section.context_parallel_degree > 1
        and attention_backend(run) == "varlen"
        and section.context_parallel_rotate_method == "allgather"
    ):
        message = "varlen attention cannot be split over context-parallel ranks that gather keys"
        help = "use context_parallel_rotate_method: alltoall, or model.attention.backend: flex"
        yield Finding(message, (BACKEND, METHOD, CONTEXT, ("model", "flavor")), help=help)
