"""Rules about sequences that several ranks share: context and sequence parallelism."""

from collections.abc import Iterator
from math import lcm

from titanrun.config.problems import DataPath
from titanrun.config.suggest import format_word_list
from titanrun.distributed.spec.parallel_dims import compute_common_divisors, get_cp_chunks_per_rank
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.attention import BACKEND, find_attention_backend
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rule

CONTEXT, TENSOR, SEQUENCE = (
    get_parallelism_path("context_parallel_degree"),
    get_parallelism_path("tensor_parallel_degree"),
    get_parallelism_path("enable_sequence_parallel"),
)
BALANCER, METHOD = (
    get_parallelism_path("context_parallel_load_balancer"),
    get_parallelism_path("context_parallel_rotate_method"),
)


def get_sequence_lengths(run: Recipe) -> dict[DataPath, int]:
    """Return the lengths of the model's input sequences, by the path of their setting."""
    lengths: dict[DataPath, int] = {("training", "seq_len"): run.training.seq_len}
    if run.validation.enable and run.validation.seq_len != run.training.seq_len:
        lengths["validation", "seq_len"] = int(run.validation.seq_len)
    return lengths


def suggest_multiple(run: Recipe, path: DataPath, length: int, unit: int) -> str:
    """Return the change of a length to a multiple of `unit` that the model's context holds."""
    near, context = round_up_to_multiple(length, unit), int(run.model.max_seq_len)
    if unit <= context < near:
        near = context // unit * unit
    return f"make {path[-1]} a multiple of {unit}, such as {near}"


def round_up_to_multiple(length: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `length`."""
    return -(-length // unit) * unit


@rule("rows-divide-over-cp")
def sequences_divide_over_cp(run: Recipe) -> Iterator[RuleViolation]:
    """Require seq_len to be divisible by context_parallel_degree.

    Context-parallel ranks share each sequence. With the load balancer headtail, seq_len must be a
    multiple of twice the degree, because each rank gets one piece from the head of the sequence and
    one from its tail. Sequences of images have a separate rule.
    """
    if run.model.modality == "images":
        return
    degree, pieces = (
        run.parallelism.context_parallel_degree,
        get_cp_chunks_per_rank(run.parallelism),
    )
    unit = degree * pieces
    for path, length in get_sequence_lengths(run).items():
        if degree > 1 and length % unit:
            divisor = (
                f"{unit} ({pieces} x context_parallel_degree {degree})"
                if pieces > 1
                else f"context_parallel_degree {degree}"
            )
            yield RuleViolation(
                f"{path[-1]} {length} is not divisible by {divisor}",
                (path, CONTEXT, BALANCER),
                hint=suggest_multiple(run, path, length, unit),
            )


@rule("heads-divide-over-cp")
def heads_divide_over_cp(run: Recipe) -> Iterator[RuleViolation]:
    """Require alltoall context parallelism to split n_heads and n_kv_heads evenly.

    With context_parallel_rotate_method alltoall each context-parallel rank computes whole attention
    heads: context_parallel_degree x tensor_parallel_degree must divide the number of query heads,
    and of key and value heads. allgather works with any number.
    """
    section, counts = run.parallelism, run.model.head_counts()
    degree, tensor = section.context_parallel_degree, section.tensor_parallel_degree
    if (
        degree == 1
        or section.context_parallel_rotate_method != "alltoall"
        or any(count % tensor for count in counts.values())
    ):
        return
    fitting = [
        str(size)
        for size in compute_common_divisors(*(count // tensor for count in counts.values()))
        if size > 1
    ]
    divisor = (
        f"context_parallel_degree {degree}"
        if tensor == 1
        else (
            f"{degree * tensor} (context_parallel_degree {degree} "
            f"x tensor_parallel_degree {tensor})"
        )
    )
    reported: set[int] = set()
    for name, count in counts.items():
        if count % (degree * tensor) and count not in reported:
            reported.add(count)
            others = (
                f", or a context_parallel_degree of {format_word_list(fitting)}" if fitting else ""
            )
            yield RuleViolation(
                f"{name} {count} is not divisible by {divisor}",
                (METHOD, CONTEXT, TENSOR, ("model", name), ("model", "flavor")),
                hint=f"use context_parallel_rotate_method: allgather{others}",
            )


@rule("rows-divide-over-tp")
def sequences_divide_over_tp(run: Recipe) -> Iterator[RuleViolation]:
    """Require seq_len to be divisible by tensor_parallel_degree.

    Sequence parallelism splits each sequence, or the piece of it on a context-parallel rank, over
    the tensor-parallel ranks: seq_len / context_parallel_degree must be a multiple of
    tensor_parallel_degree. Change the length, or set enable_sequence_parallel: false.
    """
    tensor, context = (
        run.parallelism.tensor_parallel_degree,
        run.parallelism.context_parallel_degree,
    )
    for path, length in get_sequence_lengths(run).items():
        if (
            run.parallelism.enable_sequence_parallel
            and length % context == 0
            and (length // context) % tensor
        ):
            unit = context * lcm(
                tensor, get_cp_chunks_per_rank(run.parallelism) if context > 1 else 1
            )
            divisor = (
                f"tensor_parallel_degree {tensor}"
                if context == 1
                else f"{context * tensor} (context_parallel_degree {context} "
                f"x tensor_parallel_degree {tensor})"
            )
            yield RuleViolation(
                f"{path[-1]} {length} is not divisible by {divisor}",
                (path, TENSOR, CONTEXT, SEQUENCE),
                hint=f"{suggest_multiple(run, path, length, unit)}, or set "
                "enable_sequence_parallel: false",
            )


@rule("balancer-needs-flex")
def balancer_needs_flex(run: Recipe) -> Iterator[RuleViolation]:
    """Require the load balancer headtail: ptrr is not built.

    The load balancer ptrr distributes tokens by the blocks of a flex attention mask: it needs
    model.attention.backend flex, and is not built yet. headtail works with every back end.
    """
    backend = find_attention_backend(run)
    section = run.parallelism
    if section.context_parallel_degree == 1 or section.context_parallel_load_balancer != "ptrr":
        return
    if backend == "flex":
        yield RuleViolation(
            "load balancer ptrr is not built yet",
            (BALANCER,),
            hint="use headtail",
            code="not-built",
        )
    else:
        message = (
            f"load balancer ptrr needs flex attention, but the back end is {backend or 'none'}"
        )
        yield RuleViolation(message, (BALANCER, BACKEND, ("model", "flavor")), hint="use headtail")


@rule("varlen-excludes-cp")
def varlen_excludes_cp(run: Recipe) -> Iterator[RuleViolation]:
    """Require alltoall for varlen attention with context parallelism.

    varlen attention does not support keys without queries, which context_parallel_rotate_method
    allgather gives each context-parallel rank. Use alltoall, which gives each rank whole sequences
    of some heads, or the back end flex.
    """
    section = run.parallelism
    if (
        section.context_parallel_degree > 1
        and find_attention_backend(run) == "varlen"
        and section.context_parallel_rotate_method == "allgather"
    ):
        message = "varlen attention does not support context_parallel_rotate_method allgather"
        hint = "use context_parallel_rotate_method: alltoall, or model.attention.backend: flex"
        yield RuleViolation(message, (BACKEND, METHOD, CONTEXT, ("model", "flavor")), hint=hint)
