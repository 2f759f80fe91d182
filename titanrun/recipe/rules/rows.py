"""Rules about lengths of rows."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


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
                ((section, "seq_len"), ("model", "max_seq_len"), ("model", "flavor")),
                help=f"use at most {limit}, or raise model.max_seq_len",
            )
