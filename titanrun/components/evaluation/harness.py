"""Tasks of the LM Evaluation Harness (https://github.com/EleutherAI/lm-evaluation-harness), measured by its own code."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.evaluation.config import LmEvalTaskConfig
from titanrun.components.evaluation.subject import Numbers, Subject
from titanrun.config.problems import fail
from titanrun.config.suggest import closest

# by name: it is imported only where the extra is installed
BRIDGE = "titanrun.components.evaluation.harness_model"
NO_FILTER = "none"


def measure_harness(config: LmEvalTaskConfig, *, subject: Subject) -> Numbers:
    """The metrics of a task, those of a group's parts below their names. Raises a problem where the extra or the task is missing."""
    if subject.tokenizer is None:
        raise fail("data", "lm_eval needs a tokenizer", path=("task",))
    try:
        bridge = import_module(BRIDGE)
    except ModuleNotFoundError as error:
        message = f"the task lm_eval needs a package that is not installed: {str(error.name).partition('.')[0]}"
        raise fail("usage", message, help='pip install "titanrun[lm-eval]"') from error
    # what it prints belongs to no result
    with redirect_stdout(sys.stderr):
        found = bridge.evaluated(
            bridge.HarnessModel(subject),
            config.task,
            manager_of(config, bridge),
            few_shot=config.num_fewshot,
            limit=config.limit,
        )
    return dict(numbers_of(found, config.task))


def manager_of(config: LmEvalTaskConfig, bridge: Any) -> Any:
    """The harness's tasks: those of the folder where it has this one, else all. Raises a problem for a name that none has."""
    folder = config.folder
    if folder is not None and not Path(folder).is_dir():
        raise fail(
            "file",
            f"no folder '{folder}'",
            path=("folder",),
            help="name one with task files (.yaml) of the harness",
        )
    if folder is not None:
        own = bridge.TaskManager(include_path=folder, include_defaults=False)
        if config.task in own.all_tasks:
            return own
    manager = bridge.TaskManager(include_path=folder)
    if config.task not in manager.all_tasks:
        meant = closest(config.task, manager.all_tasks)
        help = (
            f"did you mean '{meant}'?"
            if meant
            else "lm-eval ls tasks shows their names; folder names one with tasks of your own"
        )
        raise fail(
            "unknown-name", f"the harness has no task '{config.task}'", path=("task",), help=help
        )
    return manager


def numbers_of(found: Mapping[str, Any], task: str) -> Iterator[tuple[str, float]]:
    """The numbers of a result of the harness, and how many questions the task had."""
    for name, metrics in found["results"].items():
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
    counted = [entry["effective"] for entry in found.get("n-samples", {}).values()]
    yield "questions", sum(counted)
