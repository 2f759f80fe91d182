"""Dependencies and conflicts between the stages of a recipe, and the recipe as it ran."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.base import dump_config
from titanrun.config.checksum import to_yaml_with_checksum
from titanrun.config.problems import Problem, RelatedLocation
from titanrun.config.tree import Node, get_nearest_node
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.multi_stage import STAGES, TOP_LEVEL_KEYS, has_own_initial_load
from titanrun.recipe.resolving.resolve import (
    RECIPE_VERSION,
    Resolved,
    escape_recipe_data,
    load_resolved,
)
from titanrun.recipe.rules.initial_adapters import find_adapter_conflict, uses_reference
from titanrun.recipe.rundir.run_files import RESOLVED

CHECKPOINT = "checkpoint"
# sizes that must be equal for the weights of one stage to fit the next
MODEL_SIZE_FIELDS = ("name", "vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads")


@dataclass(frozen=True, slots=True)
class RecipeStage:
    """One stage; `parent_index` is the index of the stage whose weights it starts from.

    `parent_index` is None if it starts from the weights of no stage.
    """

    id: str
    resolved: Resolved
    parent_index: int | None


def build_stage_sequence(
    ids: Sequence[str], runs: Sequence[Resolved], whole: Node
) -> list[RecipeStage]:
    """Return the stages, each with the one it starts from.

    Args:
        ids: Ids of the stages, in order.
        runs: Run that each of them resolves to.
        whole: Recipe with its stages, as it was written.
    """
    return [
        RecipeStage(stage_id, run, find_parent_stage(index, ids, runs, whole))
        for index, (stage_id, run) in enumerate(zip(ids, runs, strict=True))
    ]


def find_parent_stage(
    index: int, ids: Sequence[str], runs: Sequence[Resolved], whole: Node
) -> int | None:
    """Return the index of the last training stage before `index`, whose weights it uses.

    Return None if there is none, or if the stage chooses its own initial weights.
    """
    if has_own_initial_load(whole, ids[index]):
        return None
    return next((place for place in reversed(range(index)) if runs[place].run.kind != "eval"), None)


def find_stage_problems(stages: Sequence[RecipeStage]) -> list[Problem]:
    """Return the problems between each stage and the one it starts from."""
    found = []
    for stage in stages:
        if stage.parent_index is not None:
            before = stages[stage.parent_index]
            found += [
                *find_unsaved_stage_problems(before, stage),
                *find_model_size_problems(before, stage),
                *find_adapter_problems(before, stage),
            ]
    return found


def find_unsaved_stage_problems(before: RecipeStage, stage: RecipeStage) -> list[Problem]:
    """Return a problem if the stage that another one starts from saves no checkpoint."""
    section = before.resolved.run.checkpoint
    if section.enable and not section.load_only:
        return []
    key = "load_only" if section.enable else "enable"
    message = f"stage '{stage.id}' starts from stage '{before.id}', which saves no checkpoint"
    hint = f"set {CHECKPOINT}.{key}: {'false' if section.enable else 'true'}"
    return [
        attach_stage_origin(
            Problem(
                "conflict",
                message,
                (CHECKPOINT, key),
                rule="stages-start-from-checkpoints",
                hint=hint,
            ),
            before,
        )
    ]


def find_adapter_problems(before: RecipeStage, stage: RecipeStage) -> list[Problem]:
    """Return a problem if the parent stage's adapters would be lost in a stage's reference."""
    had = before.resolved.run
    message = find_adapter_conflict(
        stage.resolved.run,
        f"stage '{before.id}'",
        has_adapters=find_lora_converter(had) is not None,
        has_reference=uses_reference(had),
    )
    if message is None:
        return []
    problem = Problem(
        "conflict",
        message,
        ("converters",),
        rule="adapters-are-merged-first",
        hint=f"train stage '{before.id}' apart, and export it with --merge for stage '{stage.id}'",
    )
    return [attach_stage_origin(problem, stage)]


def find_model_size_problems(before: RecipeStage, stage: RecipeStage) -> list[Problem]:
    """Return a problem if the parent stage's weights do not fit the stage's model."""
    had, has = before.resolved.run.model, stage.resolved.run.model
    names = [
        name for name in MODEL_SIZE_FIELDS if getattr(had, name, None) != getattr(has, name, None)
    ]
    if not names:
        return []
    name = names[0]
    sizes = getattr(has, name, None), getattr(had, name, None)
    message = (
        f"stage '{stage.id}' has model.{name} {sizes[0]}, "
        f"but stage '{before.id}', from which it starts, has {sizes[1]}"
    )
    node, path = get_nearest_node(before.resolved.tree, ("model", name))
    related = (RelatedLocation(node.key or node.origin, f"stage '{before.id}'", path),)
    hint = (
        "write the model once, at the top level, "
        "or name the stage's initial weights in its section checkpoint"
    )
    return [
        attach_stage_origin(
            Problem(
                "conflict",
                message,
                ("model", name),
                rule="stages-share-a-model",
                hint=hint,
                related=related,
            ),
            stage,
        )
    ]


def attach_stage_origin(problem: Problem, stage: RecipeStage) -> Problem:
    """Return a problem with its origin in the stage's recipe."""
    node, _ = get_nearest_node(stage.resolved.tree, problem.path)
    return replace(problem, origin=node.key or node.origin)


def get_initial_load_path(before: Path, run: Resolved, folder: Path) -> str:
    """Return where a stage loads its weights: the parent's run directory or storage path.

    A stage that was already started has recorded a spelling of the path, and keeps it.
    """
    section = run.run.checkpoint
    if is_storage_path(section.folder):
        return section.folder
    if (folder / RESOLVED).is_file():
        begun = load_resolved(folder / RESOLVED).checkpoint.initial_load_path
        if (
            begun is not None
            and not is_storage_path(begun)
            and Path(begun).resolve() == before.resolve()
        ):
            return begun
    return str(before)


def format_multi_stage_recipe(name: str, stages: Sequence[RecipeStage]) -> str:
    """Return the recipe with every stage resolved.

    It starts the same runs anywhere, so it does not contain their paths.
    """
    plugins = list(
        dict.fromkeys(plugin for stage in stages for plugin in stage.resolved.run.plugins)
    )
    data = {"version": RECIPE_VERSION, "name": name, **({"plugins": plugins} if plugins else {})}
    return to_yaml_with_checksum({**data, STAGES: [stage_to_dict(stage) for stage in stages]})


def stage_to_dict(stage: RecipeStage) -> dict[str, Any]:
    """Return one stage as plain data."""
    data = escape_recipe_data(stage.resolved.run, dump_config(stage.resolved.run))
    if stage.parent_index is not None:
        data[CHECKPOINT] |= {"initial_load_path": None}
    return {
        "id": stage.id,
        **{key: value for key, value in data.items() if key not in TOP_LEVEL_KEYS},
    }
