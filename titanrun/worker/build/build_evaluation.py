"""Runs of kind eval, which evaluate their initial weights without training."""

import logging
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.config.problems import problem_error
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.run_files import write_indented_json
from titanrun.training.train_hook import TrainResult
from titanrun.worker.commands.evaluate import format_task_result, iter_task_results
from titanrun.worker.weights.initial_weights import (
    INITIAL_LOAD_PATH,
    get_checkpoint,
    get_huggingface_folder,
)
from titanrun.worker.weights.load_model import WeightSource

EVALUATION_FILE = "evaluation.json"

log = logging.getLogger(__name__)


def run_evaluation(recipe: Recipe, run_dir: Path) -> TrainResult:
    """Evaluate the weights on each task, log the results, and write evaluation.json."""
    source = get_evaluation_weights(recipe)
    found = []
    for result in iter_task_results(recipe, source, cache_folder=run_dir):
        log.info("%s", format_task_result(result))
        found.append(result)
    write_indented_json(
        run_dir / EVALUATION_FILE, {"weights": next(iter(source.values())), "tasks": found}
    )
    return TrainResult("finished", 0, f"finished: results are in {run_dir / EVALUATION_FILE}")


def get_evaluation_weights(recipe: Recipe) -> WeightSource:
    """Return the location of the weights.

    Raises:
        ProblemsFound: the recipe does not set initial weights.
    """
    section = recipe.checkpoint
    if section.initial_load_in_hf:
        return {"huggingface": str(get_huggingface_folder(section, recipe.model))}
    if section.initial_load_path is None:
        message = "a run of kind eval needs initial weights to evaluate, but the recipe sets none"
        raise problem_error(
            "checkpoint",
            message,
            path=INITIAL_LOAD_PATH,
            hint="set checkpoint.initial_load_path, or make it a stage",
        )
    return {
        "checkpoint": str(
            get_checkpoint(parse_storage_path(section.initial_load_path), section.folder).folder
        )
    }
