"""Decides every `auto` from the rest of the recipe: pure, so that the same recipe is the same run everywhere."""

from pathlib import PurePath
from typing import Any

from titanrun.components.data.config import (
    DatasetConfig,
    TinyChatDatasetConfig,
    TinyDatasetConfig,
    TinyImagesConfig,
)
from titanrun.config.base import dump
from titanrun.config.types import AUTO
from titanrun.distributed.degrees import degrees_of
from titanrun.models.shared.flavors import spell_out
from titanrun.recipe.length import decided_length
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.run_files import RUNS
from titanrun.rl.tasks.config import SyntheticConfig

SHIPPED = (TinyDatasetConfig, TinyChatDatasetConfig, TinyImagesConfig)
# hidden: it is no run among the runs
SHARED_CACHE = f"{RUNS}/.data"
LONGEST_WARMUP = 200
WARMUP_SHARE = 10


def decide(recipe: Recipe, *, file: str, ranks: int | None = None) -> dict[str, Any]:
    """The whole recipe as plain data, every `auto` decided but the three that need the machine; `ranks` is None where they are unknown.

    Raises ProblemsFound where a size cannot be decided.
    """
    data = dump(recipe)
    data["name"] = recipe.name or PurePath(file).stem
    data["dump_folder"] = None
    data["model"] = spell_out(recipe.model, row_length=recipe.training.seq_len)
    decide_documents(recipe, data["model"])
    data["tokenizer"] = decided_tokenizer(recipe, data["tokenizer"])
    data["training"] |= decided_batch(recipe, ranks)
    data["training"] |= decided_length(
        recipe, global_batch_size=data["training"]["global_batch_size"]
    )
    if recipe.training.data_cache == AUTO:
        data["training"]["data_cache"] = SHARED_CACHE if recipe.dump_folder is None else None
    data["lr_scheduler"] |= decided_schedule(recipe, steps=data["training"]["steps"])
    data["validation"] |= decided_validation(recipe)
    data["evaluation"]["tasks"] = decided_tasks(data["evaluation"]["tasks"], data["validation"])
    if recipe.rl is not None and recipe.rl.validation.dataset == AUTO:
        data["rl"]["validation"]["dataset"] = held_out_prompts(recipe.training.dataset)
    return data


def decide_documents(recipe: Recipe, model: dict[str, Any]) -> None:
    """Writes into the model's plain data what begins a document: positions where the dataset's start anew, else end-of-text tokens."""
    attention = model.get("attention")
    if isinstance(attention, dict) and attention.get("documents") == AUTO:
        source = "positions" if recipe.training.dataset.restarts_positions else "eos"
        attention["documents"] = source if attention["mask"] == "block_causal" else None


def decided_tokenizer(recipe: Recipe, written: Any) -> Any:
    """The model's own tokenizer where the data is text and nothing is written; the tiny one for the tiny corpus."""
    if written != AUTO:
        return written
    if not recipe.training.dataset.needs_tokenizer:
        return None
    if recipe.model.hf_assets_path is not None:
        return {"name": "huggingface", "path": recipe.model.hf_assets_path}
    return {"name": "tiny"} if isinstance(recipe.training.dataset, SHIPPED) else None


def decided_batch(recipe: Recipe, ranks: int | None) -> dict[str, Any]:
    """One forward pass a rank and step, unless written otherwise; ranks that nobody named count as one shard."""
    if recipe.training.global_batch_size != AUTO:
        return {}
    degrees = degrees_of(recipe.parallelism, ranks)
    readers = degrees.batch if degrees else recipe.parallelism.data_parallel_replicate_degree
    return {"global_batch_size": recipe.training.local_batch_size * readers}


def decided_schedule(recipe: Recipe, *, steps: int | None) -> dict[str, Any]:
    """A tenth of the run as warmup, 200 steps at most; the horizon is the run. Both are null while the steps are."""
    if steps is None and recipe.training.epochs is None:  # a mistake, which a rule tells
        return {}
    followed = (
        following(steps) if steps is not None else {"warmup_steps": None, "total_steps": None}
    )
    return {
        name: value
        for name, value in followed.items()
        if getattr(recipe.lr_scheduler, name, None) == AUTO
    }


def following(steps: int) -> dict[str, int]:
    """What the length of the run decides about the schedule."""
    return {"warmup_steps": min(LONGEST_WARMUP, steps // WARMUP_SHARE), "total_steps": steps}


def with_steps(run: Recipe, steps: int) -> Recipe:
    """The run with its steps, and what follows from them, in the place of null: for the worker, which knows how many rows an epoch has."""
    schedule = dict(run.lr_scheduler)
    schedule |= {
        name: value
        for name, value in following(steps).items()
        if name in schedule and schedule[name] is None
    }
    # section by section, not through plain data, which would be refused where the worker has filled in a secret
    training = type(run.training).model_validate({**dict(run.training), "steps": steps})
    return type(run).model_validate(
        {
            **dict(run),
            "training": training,
            "lr_scheduler": type(run.lr_scheduler).model_validate(schedule),
        }
    )


def held_out_prompts(dataset: DatasetConfig) -> dict[str, Any] | None:
    """The held-out part of a task that titanrun makes up; None of any other."""
    is_made_up = isinstance(dataset, SyntheticConfig)
    return (
        dump(dataset) | {"split": "held_out", "shuffle": False, "repeat": False}
        if is_made_up
        else None
    )


def decided_validation(recipe: Recipe) -> dict[str, Any]:
    """Rows and passes as in training; the held-out part of what ships with titanrun where the other part trains."""
    validation, training = recipe.validation, recipe.training
    decided: dict[str, Any] = {}
    if validation.local_batch_size == AUTO:
        decided["local_batch_size"] = training.local_batch_size
    if validation.seq_len == AUTO:
        decided["seq_len"] = training.seq_len
    if validation.dataset == AUTO:
        decided["dataset"] = None
        if isinstance(training.dataset, SHIPPED):
            held_out = {"split": "held_out", "shuffle": False, "repeat": False}
            decided["dataset"] = dump(training.dataset) | held_out
    return decided


def decided_tasks(tasks: list[dict[str, Any]], validation: dict[str, Any]) -> list[dict[str, Any]]:
    """The tasks with what they take from validation."""
    return [
        task | {key: validation[key] for key in ("dataset", "seq_len") if task.get(key) == AUTO}
        for task in tasks
    ]
