"""Rules about rows that several ranks share: context parallelism, and the sequence parallelism beside tensor parallelism."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.models.shared.config import AttentionConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at

CONTEXT, TENSOR, SEQUENCE = at("context_parallel_degree"), at("tensor_parallel_degree"), at("enable_sequence_parallel")
BALANCER = at("context_parallel_load_balancer")
BACKEND: DataPath = ("model", "attention", "backend")


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
    """Context-parallel ranks share each row, a piece from its head and one from its tail for each: seq_len must be a multiple of
    twice context_parallel_degree."""
    degree = run.parallelism.context_parallel_degree
    for path, length in row_lengths(run).items():
        if degree > 1 and length % (2 * degree):
            yield Finding(
                f"rows of {length} tokens cannot be split over {degree} context-parallel ranks, two pieces each",
                (path, CONTEXT),
                help=f"make {path[-1]} a multiple of {2 * degree}, such as {next_multiple(length, 2 * degree)}",
            )


@rule("rows-divide-over-tp")
def rows_divide_over_tp(run: Recipe) -> Iterator[Finding]:
    """Sequence parallelism splits each row, or what context parallelism leaves of it, over the tensor-parallel ranks: seq_len /
    context_parallel_degree must be a multiple of tensor_parallel_degree. Change the length, or set enable_sequence_parallel: false."""
    tensor, context = run.parallelism.tensor_parallel_degree, run.parallelism.context_parallel_degree
    for path, length in row_lengths(run).items():
        if run.parallelism.enable_sequence_parallel and length % context == 0 and (length // context) % tensor:
            unit = tensor * (2 * context if context > 1 else 1)
            piece = f"rows of {length} tokens" if context == 1 else f"pieces of {length // context} tokens"
            yield Finding(
                f"{piece} cannot be split over {tensor} tensor-parallel ranks",
                (path, TENSOR, CONTEXT, SEQUENCE),
                help=f"make {path[-1]} a multiple of {unit}, such as {next_multiple(length, unit)}, or set enable_sequence_parallel: false",
            )


@rule("balancer-needs-flex")
def balancer_needs_flex(run: Recipe) -> Iterator[Finding]:
    """The load balancer ptrr deals tokens by the blocks of a flex attention mask: it needs model.attention.backend flex. headtail
    works with every back end."""
    backend = attention_backend(run)
    section = run.parallelism
    if section.context_parallel_degree > 1 and section.context_parallel_load_balancer == "ptrr" and backend not in (None, "flex"):
        message = f"the load balancer ptrr needs flex attention, and the model has {backend}"
        yield Finding(message, (BALANCER, BACKEND, ("model", "flavor")), help="use headtail, or model.attention.backend: flex")


@rule("varlen-excludes-cp")
def varlen_excludes_cp(run: Recipe) -> Iterator[Finding]:
    """varlen attention cannot see the pieces of a row that lie on other ranks: use the back end sdpa or flex with context
    parallelism."""
    if run.parallelism.context_parallel_degree > 1 and attention_backend(run) == "varlen":
        message = "varlen attention cannot be split over context-parallel ranks"
        yield Finding(message, (BACKEND, CONTEXT, ("model", "flavor")), help="use model.attention.backend: sdpa or flex")


def attention_backend(run: Recipe) -> str | None:
    """The attention back end; None for a family without one."""
    attention = getattr(run.model, "attention", None)
    return attention.backend if isinstance(attention, AttentionConfig) else None
