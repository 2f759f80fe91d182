"""Rules about sequence lengths."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule


@rule("rows-fit-context")
def sequences_fit_context(run: Recipe) -> Iterator[RuleViolation]:
    """Require seq_len not to exceed model.max_seq_len.

    training.seq_len and validation.seq_len may not exceed the context length of the model. Shorten
    the sequences, or raise model.max_seq_len on purpose.
    """
    limit = int(run.model.max_seq_len)
    lengths = {"training": run.training.seq_len}
    if run.validation.enable and run.validation.seq_len != run.training.seq_len:
        lengths["validation"] = int(run.validation.seq_len)
    for section, length in lengths.items():
        if length > limit:
            yield RuleViolation(
                f"seq_len {length} exceeds model.max_seq_len {limit}",
                ((section, "seq_len"), ("model", "max_seq_len"), ("model", "flavor")),
                hint=f"use at most {limit}, or raise model.max_seq_len",
            )
