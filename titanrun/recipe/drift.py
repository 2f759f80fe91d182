"""What a recipe that differs from the run it goes on with may change: everything that moves no tensor, and what it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from titanrun.config.base import ComponentConfig, dump
from titanrun.config.diff import Change
from titanrun.config.fields import Change as ChangeClass
from titanrun.config.fields import Setting, setting_of
from titanrun.config.problems import DataPath
from titanrun.config.render import shorten
from titanrun.config.shape import config_at, field_at, value_at
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe

SCHEDULE = "lr_scheduler"
# sections that watch a run or start it; what lies below them moves no tensor, whatever class it has elsewhere
BESIDE = {"metrics", "validation", "profiling", "launch"}
# they say where the run's state is: another value would begin the run anew without a word
BOUND: set[DataPath] = {("checkpoint", "enable"), ("checkpoint", "folder")}

Verdict = Literal["silent", "reported", "refused"]


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between a saved run and the one that goes on with it."""

    changes: tuple[Change, ...] = ()
    refused: tuple[Change, ...] = ()
    reported: tuple[Change, ...] = ()


def judge(changes: Sequence[Change], before: Recipe, now: Recipe) -> Drift:
    """Which changes a resume refuses, and which are worth a line."""
    verdicts = [(change, verdict(change, before, now)) for change in changes]
    refused = tuple(change for change, found in verdicts if found == "refused")
    return Drift(
        tuple(changes), refused, tuple(change for change, found in verdicts if found == "reported")
    )


def verdict(change: Change, before: Recipe, now: Recipe) -> Verdict:
    """What a resume makes of one change: the class that the field declares decides, and checkpoint.allow_change."""
    if change.path in BOUND:
        return "refused"
    change_class, resume = (
        meaning_of(change.path, now) or meaning_of(change.path, before) or ("numerics", False)
    )
    if change_class == "bookkeeping" or change.path[0] in BESIDE:
        return "silent"
    if change_class == "performance" or resume or change.path[0] == SCHEDULE:
        return "reported"
    return "reported" if is_named(change.path, now.checkpoint.allow_change) else "refused"


def is_named(path: DataPath, named: Sequence[str]) -> bool:
    """Whether one of the names is this path, or a section around it."""
    text = path_text(path)
    return any(text == name or text.startswith((f"{name}.", f"{name}[")) for name in named)


def meaning_of(path: DataPath, run: Recipe) -> tuple[ChangeClass, bool] | None:
    """The class that the field at `path`, or the nearest field above it, declares, and whether a resume allows any change of it."""
    data = dump(run)
    while path:
        field = field_at(type(run), data, path)
        setting = (setting_of(field) if field is not None else None) or setting_of_component(
            type(run), data, path
        )
        if setting is not None:
            return setting.change, setting.resume
        path = path[:-1]
    return None


def setting_of_component(model: type[Recipe], data: Any, path: DataPath) -> Setting | None:
    """What is declared about the `name` of the component at `path`; of a list of them, about its first."""
    items = value_at(data, path)
    place = (*path, 0) if isinstance(items, list) and items else path
    config = config_at(model, data, place)
    field = (
        config.model_fields.get("name")
        if config is not None and issubclass(config, ComponentConfig)
        else None
    )
    return None if field is None else setting_of(field)


def change_text(change: Change) -> str:
    """`optimizer.lr 0.0003 -> 0.001`."""
    return f"{path_text(change.path)} {shorten(change.left)} -> {shorten(change.right)}"
