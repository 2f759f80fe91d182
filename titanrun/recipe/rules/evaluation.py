"""Rules about evaluation tasks."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.evaluation.config import (
    ExactMatchTaskConfig,
    LossTaskConfig,
    MultipleChoiceTaskConfig,
)
from titanrun.components.evaluation.spec.choice_questions import load_choice_questions
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.parallel_dims import find_ranks_setting
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule


@rule("tasks-have-data")
def tasks_have_data(run: Recipe) -> Iterator[RuleViolation]:
    """Require every evaluation task to have a dataset.

    A task needs its own dataset, validation.dataset or validation.holdout. The task exact_match
    needs conversations, because it compares their replies.
    """
    held_out = None if run.validation.holdout is None else run.training.dataset
    for index, task in enumerate(run.evaluation.tasks):
        path = ("evaluation", "tasks", index)
        dataset = getattr(task, "dataset", None) or held_out
        if isinstance(task, LossTaskConfig | ExactMatchTaskConfig) and dataset is None:
            paths = ((*path, "dataset"), path, ("validation", "dataset"))
            yield RuleViolation(
                f"task {task.name} has no dataset",
                paths,
                hint="set dataset in the task, validation.dataset or validation.holdout",
            )
        elif isinstance(task, ExactMatchTaskConfig) and not isinstance(
            dataset, ConversationsConfig
        ):
            assert dataset is not None
            message = (
                f"task exact_match needs a conversation dataset, but dataset '{dataset.name}' has "
                "no conversations"
            )
            yield RuleViolation(
                message, ((*path, "dataset"), path), hint="use tiny_chat or chat, or the task loss"
            )


@rule("eval-has-tasks")
def eval_has_tasks(run: Recipe) -> Iterator[RuleViolation]:
    """Require evaluation.tasks, validation.dataset or validation.holdout if kind is eval.

    A run of kind eval evaluates the tasks, or the loss on held-out data. Set one of them.
    """
    has_held_out = run.validation.dataset is not None or run.validation.holdout is not None
    if run.kind == "eval" and not run.evaluation.tasks and not has_held_out:
        paths = (("kind",), ("evaluation", "tasks"), ("validation", "dataset"))
        yield RuleViolation(
            "kind eval has nothing to evaluate",
            paths,
            hint="set evaluation.tasks, validation.dataset or validation.holdout",
        )


@rule("questions-can-be-read", level="environment")
def questions_can_be_read(run: Recipe) -> Iterator[RuleViolation]:
    """Require the files of multiple-choice questions to be readable.

    Every line needs a question, two or more choices, and the index of the correct choice, counted
    from 0.
    """
    for index, task in enumerate(run.evaluation.tasks if run.kind == "eval" else ()):
        if not isinstance(task, MultipleChoiceTaskConfig) or task.path is None:
            continue  # only the run reads the Hub
        if not Path(task.path).exists():
            continue  # paths-exist reports missing files
        try:
            load_choice_questions(Path(task.path))
        except ProblemsFound as found:
            for problem in found.problems:
                yield RuleViolation(
                    problem.message,
                    (("evaluation", "tasks", index, "path"),),
                    hint=problem.hint,
                    code="data",
                )


@rank_rule("eval-takes-one-process")
def eval_takes_one_process(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require a single process if kind is eval.

    Evaluation runs in one process. Set launch.nproc_per_node: 1.
    """
    if run.kind == "eval" and ranks is not None and ranks > 1:
        message = f"kind eval runs in one process, but world_size is {ranks}"
        yield RuleViolation(
            message,
            (("kind",), *find_ranks_setting(run, ranks)),
            hint="set launch.nproc_per_node: 1",
        )
