"""Rule about labelled replies that all have the same label."""

from collections.abc import Iterator
from contextlib import suppress

from titanrun.components.data.replies_config import LabelledDatasetConfig
from titanrun.components.data.spec.preference_formats import parse_label
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import read_small_records

KINDS = {True: "desirable", False: "undesirable"}


@rule("labels-differ", level="environment")
def labels_differ(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about labelled replies of which all are desirable, or none is.

    The loss has nothing to tell apart. Add replies with the other label, or name another column
    with label_column. The records of small files are read here; a run counts the labels of others.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, LabelledDatasetConfig) or dataset.path is None:
            continue
        labels: list[bool] = []
        with suppress(ProblemsFound, OSError, ValueError):  # other rules and the run report it
            if not dataset.from_pairs:
                records = read_small_records(dataset.path) or ()
                labels = [parse_label(dataset, record, where) for where, record in records]
        if len(labels) > 1 and len(set(labels)) == 1:
            yield RuleViolation(
                f"all {len(labels):,} replies of '{dataset.path}' are {KINDS[labels[0]]}: nothing "
                "to tell apart",
                ((*place, "label_column"), place),
                hint=f"add {KINDS[not labels[0]]} replies, whose {dataset.label_column} is "
                f"{str(not labels[0]).lower()}, or name another label_column",
                code="data",
                severity="warning",
                section=place,
            )
