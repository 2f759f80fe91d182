"""Condition for `shuffle` of a dataset to be read."""

from titanrun.config.fields import ReadWhen

SHUFFLES = ReadWhen(
    "validation-reads-in-order",
    "",
    "on validation: it reads the same sequences in the same order each time",
    "remove it",
    fact="reads_in_any_order",
    only_for=(True,),
)
