"""Tasks of the LM Evaluation Harness.

https://github.com/EleutherAI/lm-evaluation-harness
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.evaluation.config import LmEvalTaskConfig
from titanrun.components.evaluation.eval_model import EvalModel, TaskMetrics
from titanrun.config.problems import problem_error
from titanrun.config.suggest import find_closest

# imported by name, only if the extra is installed
LM_EVAL_MODEL_MODULE = "titanrun.components.evaluation.lm_eval_model"
NO_FILTER = "none"


def evaluate_lm_eval_task(config: LmEvalTaskConfig, *, eval_model: EvalModel) -> TaskMetrics:
    """Return the metrics of a task, those of a group's tasks with their names as prefix.

    Raises:
        ProblemsFound: If the extra or the task is missing.
    """
    if eval_model.tokenizer is None:
        raise problem_error("data", "lm_eval needs a tokenizer", path=("task",))
    try:
        bridge = import_module(LM_EVAL_MODEL_MODULE)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        message = f"the task lm_eval needs a package that is not installed: {package}"
        raise problem_error("usage", message, hint='pip install "titanrun[lm-eval]"') from error
    # the harness's output is not part of the result
    with redirect_stdout(sys.stderr):
        found = bridge.run_lm_eval(
            bridge.LmEvalModel(eval_model),
            config.task,
            load_task_manager(config, bridge),
            few_shot=config.num_fewshot,
            limit=config.limit,
        )
    return dict(iter_result_metrics(found, config.task))


def load_task_manager(config: LmEvalTaskConfig, lm_eval_module: Any) -> Any:
    """Return the harness's tasks: those of the folder if it has this one, else all.

    Raises:
        ProblemsFound: If no task has the name.
    """
    folder = config.folder
    if folder is not None and not Path(folder).is_dir():
        raise problem_error(
            "file",
            f"folder not found: '{folder}'",
            path=("folder",),
            hint="name one with task files (.yaml) of the harness",
        )
    if folder is not None:
        own = lm_eval_module.TaskManager(include_path=folder, include_defaults=False)
        if config.task in own.all_tasks:
            return own
    manager = lm_eval_module.TaskManager(include_path=folder)
    if config.task not in manager.all_tasks:
        meant = find_closest(config.task, manager.all_tasks)
        hint = (
            f"did you mean '{meant}'?"
            if meant
            else "lm-eval ls tasks shows their names; set folder for your own tasks"
        )
        raise problem_error(
            "unknown-name", f"the harness has no task '{config.task}'", path=("task",), hint=hint
        )
    return manager


def iter_result_metrics(results: Mapping[str, Any], task: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a result of the harness, and the number of questions of the task."""
    for name, metrics in results["results"].items():
        for key, value in metrics.items():
            metric, _, chosen = key.partition(",")
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or metric == "sample_len"
            ):
                continue
            label = metric if chosen in ("", NO_FILTER) else f"{metric}/{chosen}"
            yield (label if name == task else f"{name}/{label}"), value
    counted = [entry["effective"] for entry in results.get("n-samples", {}).values()]
    yield "questions", sum(counted)
