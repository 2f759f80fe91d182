"""A run of kind eval: it measures the weights that it starts from, and trains nothing."""

import logging
from pathlib import Path

from titanrun.components.checkpoints.addresses import place
from titanrun.config.problems import fail
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.run_dir import write_json
from titanrun.training.trainer import Outcome
from titanrun.worker.evaluate import line_of, measured
from titanrun.worker.loaded_model import Job
from titanrun.worker.weights import INITIAL_LOAD_PATH, find_checkpoint, huggingface_folder

EVALUATION = "evaluation.json"

log = logging.getLogger(__name__)


def evaluate(recipe: Recipe, run_dir: Path) -> Outcome:
    """Measures the weights by each task, says what was found, and writes it into evaluation.json."""
    source = weights_of(recipe)
    found = []
    for result in measured(recipe, source, cache_folder=run_dir):
        log.info("%s", line_of(result))
        found.append(result)
    write_json(run_dir / EVALUATION, {"weights": next(iter(source.values())), "tasks": found})
    return Outcome("finished", 0, f"finished: {run_dir / EVALUATION} has what was found")


def weights_of(recipe: Recipe) -> Job:
    """Where the weights are. Raises a problem where the recipe names none."""
    section = recipe.checkpoint
    if section.initial_load_in_hf:
        return {"huggingface": str(huggingface_folder(section, recipe.model))}
    if section.initial_load_path is None:
        message = (
            "a run of kind eval measures the weights that it starts from, and the recipe names none"
        )
        raise fail(
            "checkpoint",
            message,
            path=INITIAL_LOAD_PATH,
            help="set checkpoint.initial_load_path, or make it a stage",
        )
    return {
        "checkpoint": str(find_checkpoint(place(section.initial_load_path), section.folder).folder)
    }
