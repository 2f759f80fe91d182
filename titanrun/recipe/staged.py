"""The runs of a recipe with stages together: which of them starts from which, what is wrong between them, and their recipe as it ran."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.addresses import is_address
from titanrun.config.base import dump
from titanrun.config.problems import Problem, Related
from titanrun.config.signature import signed
from titanrun.config.tree import Node, nearest
from titanrun.recipe.resolve import RECIPE_VERSION, Resolved, read_resolved, written
from titanrun.recipe.run_files import RESOLVED
from titanrun.recipe.stages import OF_THE_WHOLE, STAGES, says_its_start

CHECKPOINT = "checkpoint"
# weights of one size do not fit a model of another
SIZES = ("name", "vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; `before` is the place in the list of the stage whose weights it starts from, None where it starts from none of them."""

    id: str
    run: Resolved
    before: int | None


def stages_in_order(ids: Sequence[str], runs: Sequence[Resolved], whole: Node) -> list[Stage]:
    """The stages, each with the one it starts from.

    Args:
        ids: of the stages, in order.
        runs: what each of them resolves to.
        whole: the recipe with its stages, as it was written.
    """
    return [
        Stage(id, run, before_of(index, ids, runs, whole))
        for index, (id, run) in enumerate(zip(ids, runs, strict=True))
    ]


def before_of(index: int, ids: Sequence[str], runs: Sequence[Resolved], whole: Node) -> int | None:
    """The place of the stage whose weights the stage at `index` starts from: the last before it that trains.

    None where there is none, or the stage says itself from what it starts.
    """
    if says_its_start(whole, ids[index]):
        return None
    return next((place for place in reversed(range(index)) if runs[place].run.kind != "eval"), None)


def problems_between(stages: Sequence[Stage]) -> list[Problem]:
    """What is wrong between one stage and the next."""
    found = []
    for stage in stages:
        if stage.before is not None:
            before = stages[stage.before]
            found += [*not_saved(before, stage), *other_sizes(before, stage)]
    return found


def not_saved(before: Stage, stage: Stage) -> list[Problem]:
    """A stage saves nothing, from which another is to start."""
    section = before.run.run.checkpoint
    if section.enable and not section.load_only:
        return []
    key = "load_only" if section.enable else "enable"
    message = f"stage '{stage.id}' starts from stage '{before.id}', which saves nothing"
    help = f"set {CHECKPOINT}.{key}: {'false' if section.enable else 'true'}"
    return [
        placed(
            Problem(
                "conflict",
                message,
                (CHECKPOINT, key),
                rule="stages-start-from-checkpoints",
                help=help,
            ),
            before,
        )
    ]


def other_sizes(before: Stage, stage: Stage) -> list[Problem]:
    """A stage has a model that the weights of the one before do not fit."""
    had, has = before.run.run.model, stage.run.run.model
    names = [name for name in SIZES if getattr(had, name, None) != getattr(has, name, None)]
    if not names:
        return []
    name = names[0]
    sizes = getattr(has, name, None), getattr(had, name, None)
    message = f"stage '{stage.id}' has model.{name} {sizes[0]}, and stage '{before.id}', from which it starts, {sizes[1]}"
    node, path = nearest(before.run.tree, ("model", name))
    related = (Related(node.key or node.origin, f"stage '{before.id}'", path),)
    help = "write the model once, at the top level, or say in the stage's checkpoint what it starts from"
    return [
        placed(
            Problem(
                "conflict",
                message,
                ("model", name),
                rule="stages-share-a-model",
                help=help,
                related=related,
            ),
            stage,
        )
    ]


def placed(problem: Problem, stage: Stage) -> Problem:
    """A problem at the place where the stage says what it is about."""
    node, _ = nearest(stage.run.tree, problem.path)
    return replace(problem, origin=node.key or node.origin)


def start_of(before: Path, run: Resolved, folder: Path) -> str:
    """Where a stage takes its weights from: the run directory of the one before, or the address that it saves to.

    A stage that began already has written down how that is spelled, and keeps it.
    """
    section = run.run.checkpoint
    if is_address(section.folder):
        return section.folder
    if (folder / RESOLVED).is_file():
        begun = read_resolved(folder / RESOLVED).checkpoint.initial_load_path
        if (
            begun is not None
            and not is_address(begun)
            and Path(begun).resolve() == before.resolve()
        ):
            return begun
    return str(before)


def whole_text(name: str, stages: Sequence[Stage]) -> str:
    """The recipe with every stage resolved; it starts the same runs anywhere, so it does not say where these lay."""
    plugins = list(dict.fromkeys(plugin for stage in stages for plugin in stage.run.run.plugins))
    data = {"version": RECIPE_VERSION, "name": name, **({"plugins": plugins} if plugins else {})}
    return signed({**data, STAGES: [entry(stage) for stage in stages]})


def entry(stage: Stage) -> dict[str, Any]:
    """One stage as plain data."""
    data = written(stage.run.run, dump(stage.run.run))
    if stage.before is not None:
        data[CHECKPOINT] |= {"initial_load_path": None}
    return {
        "id": stage.id,
        **{key: value for key, value in data.items() if key not in OF_THE_WHOLE},
    }
