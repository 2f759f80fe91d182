"""Rules about what a model is measured by."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.components.data.config import ConversationsConfig
from titanrun.components.evaluation.config import (
    ExactMatchTaskConfig,
    LossTaskConfig,
    MultipleChoiceTaskConfig,
)
from titanrun.components.evaluation.questions import read_questions
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import where_asked


@rule("tasks-have-data")
def tasks_have_data(run: Recipe) -> Iterator[Finding]:
    """A task needs data of its own, or that of validation; exact_match needs conversations, of which it asks for the replies."""
    for index, task in enumerate(run.evaluation.tasks):
        path = ("evaluation", "tasks", index)
        if isinstance(task, LossTaskConfig | ExactMatchTaskConfig) and task.dataset is None:
            paths = ((*path, "dataset"), path, ("validation", "dataset"))
            yield Finding(
                f"the task {task.name} has no dataset",
                paths,
                help="name one in the task, or set validation.dataset",
            )
        elif isinstance(task, ExactMatchTaskConfig) and not isinstance(
            task.dataset, ConversationsConfig
        ):
            message = f"exact_match asks for the replies of conversations, and dataset '{task.dataset.name}' has none"  # type: ignore[union-attr]
            yield Finding(
                message, ((*path, "dataset"), path), help="take tiny_chat or chat, or the task loss"
            )


@rule("eval-has-tasks")
def eval_has_tasks(run: Recipe) -> Iterator[Finding]:
    """A run of kind eval measures by evaluation.tasks, or by the loss on validation.dataset: one of the two must be there."""
    if run.kind == "eval" and not run.evaluation.tasks and run.validation.dataset is None:
        paths = (("kind",), ("evaluation", "tasks"), ("validation", "dataset"))
        yield Finding(
            "there is nothing to measure", paths, help="set evaluation.tasks, or validation.dataset"
        )


@rule("questions-can-be-read", level="environment")
def questions_can_be_read(run: Recipe) -> Iterator[Finding]:
    """Every line of a file of questions must have a question, two answers or more, and the place of the right one, counted from 0."""
    for index, task in enumerate(run.evaluation.tasks if run.kind == "eval" else ()):
        if not isinstance(task, MultipleChoiceTaskConfig) or not Path(task.path).exists():
            continue  # of a file that is not there, paths-exist speaks
        try:
            read_questions(Path(task.path))
        except ProblemsFound as found:
            for problem in found.problems:
                yield Finding(
                    problem.message,
                    (("evaluation", "tasks", index, "path"),),
                    help=problem.help,
                    code="data",
                )


@rank_rule("eval-takes-one-process")
def eval_takes_one_process(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """A model is measured by one process: set launch.nproc_per_node: 1 where kind is eval."""
    if run.kind == "eval" and ranks is not None and ranks > 1:
        message = f"kind eval is done by one process, and there are {ranks}"
        yield Finding(
            message, (("kind",), *where_asked(run, ranks)), help="set launch.nproc_per_node: 1"
        )
