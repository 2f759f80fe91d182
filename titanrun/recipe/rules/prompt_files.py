"""Rules about the files of prompts for RL."""

from collections.abc import Iterator
from itertools import islice

from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.spec.json_lines import check_first_and_last_record
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets, matches_existing_path
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.rl.prompts.config import QuestionsConfig
from titanrun.rl.prompts.spec.prompt_records import iter_jsonl_prompts

MAX_CHECKED = 1_000
"""Prompts of a dataset that are read before a run."""


@rule("prompts-can-be-read", level="environment")
def prompts_can_be_read(run: Recipe) -> Iterator[RuleViolation]:
    """Require the first thousand lines of prompts to have a prompt and an answer.

    Each line is a JSON object, the last one of each file too, which a download may have cut.
    The columns are prompt_column and answer_column, and answer_pattern must match every answer. The
    run reads all lines before its first step, and ends at the first that has none.
    """
    for place, dataset in list_prompt_files(run):
        assert dataset.path is not None
        try:
            count = sum(1 for _ in islice(iter_jsonl_prompts(dataset), MAX_CHECKED))
            for file in resolve_data_files(dataset.path, (".jsonl",)):
                check_first_and_last_record(file)
        except ProblemsFound as error:
            for problem in error.problems:
                paths = ((*place, *problem.path), place)
                yield RuleViolation(
                    problem.message, paths, hint=problem.hint, code="data", section=place
                )
            continue
        if count == 0:
            yield RuleViolation(
                f"'{dataset.path}' has no prompts",
                ((*place, "path"), place),
                hint="write one JSON object a line, with the columns of prompt and answer",
                code="data",
            )


def list_prompt_files(run: Recipe) -> list[tuple[DataPath, QuestionsConfig]]:
    """Return the datasets of prompts in files, with their paths.

    Those to train on are there: paths-exist reports the others.
    """
    found = [
        (place, dataset)
        for place, dataset in get_all_datasets(run)
        if isinstance(dataset, QuestionsConfig)
        and dataset.path is not None
        and matches_existing_path(dataset.path)
    ]
    held_out = None if run.rl is None else run.rl.validation.dataset
    if isinstance(held_out, QuestionsConfig) and held_out.path is not None:
        found.append((("rl", "validation", "dataset"), held_out))
    return found
