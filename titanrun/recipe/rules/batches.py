"""Rules about batch sizes and lengths."""

from collections.abc import Iterator

from titanrun.config.suggest import listing
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("batch-sizes-divide")
def batch_sizes_divide(run: Recipe) -> Iterator[Finding]:
    """One optimizer step takes a whole number of forward passes: global_batch_size must be a multiple of local_batch_size
    times the data-parallel ranks. Change either of them."""
    local, total = run.training.local_batch_size, int(run.training.global_batch_size)
    if total % local:
        divisors = [str(size) for size in range(1, total + 1) if total % size == 0] if total <= 4096 else []
        yield Finding(
            f"a global batch of {total} rows cannot be split into passes of {local}",
            (("training", "global_batch_size"), ("training", "local_batch_size")),
            help=f"use a local_batch_size of {listing(divisors)}" if divisors else "make global_batch_size a multiple",
        )


@rule("rows-fit-context")
def rows_fit_context(run: Recipe) -> Iterator[Finding]:
    """training.seq_len and validation.seq_len may not exceed the context length that the model is meant for. Shorten the rows, or
    raise model.max_seq_len on purpose."""
    limit = int(run.model.max_seq_len)
    lengths = {"training": run.training.seq_len}
    if run.validation.enable and run.validation.seq_len != run.training.seq_len:
        lengths["validation"] = int(run.validation.seq_len)
    for section, length in lengths.items():
        if length > limit:
            yield Finding(
                f"rows of {length} tokens exceed the model's context of {limit}",
                ((section, "seq_len"), ("model", "max_seq_len")),
                help=f"use at most {limit}, or raise model.max_seq_len",
            )
