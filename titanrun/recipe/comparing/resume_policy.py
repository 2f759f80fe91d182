"""Rules for which recipe changes a resumed run accepts.

Accepted are changes that move no tensor, and those that checkpoint.allow_change names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from titanrun.config.base import ComponentConfig, dump_config
from titanrun.config.data_diff import DataChange
from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import ChangeClass as ChangeClass
from titanrun.config.fields import FieldMetadata, find_field_metadata
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import find_config_class, find_field_info, find_value
from titanrun.recipe.recipe import Recipe

SCHEDULE = "lr_scheduler"
# sections that observe or launch a run; their fields move no tensor, whatever their change class
OBSERVER_SECTIONS = {"metrics", "validation", "profiling", "launch"}
# location of the run's state: another value would silently restart the run
FIXED_PATHS: set[DataPath] = {("checkpoint", "enable"), ("checkpoint", "folder")}

# what training leaves out, though it stands in such a section
SPLIT_PATHS: set[DataPath] = {("validation", "holdout"), ("validation", "holdout_by")}

MAX_FIELDS_SHOWN = 3
ChangeVerdict = Literal["silent", "reported", "refused"]


@dataclass(frozen=True, slots=True)
class ResumeChanges:
    """Differences between a saved run and the recipe that resumes it."""

    all_changes: tuple[DataChange, ...] = ()
    refused_changes: tuple[DataChange, ...] = ()
    reported_changes: tuple[DataChange, ...] = ()


def classify_resume_changes(
    changes: Sequence[DataChange], before: Recipe, now: Recipe
) -> ResumeChanges:
    """Return which changes a resume refuses, and which it reports."""
    verdicts = [(change, classify_change(change, before, now)) for change in changes]
    refused = tuple(change for change, found in verdicts if found == "refused")
    return ResumeChanges(
        tuple(changes), refused, tuple(change for change, found in verdicts if found == "reported")
    )


def classify_change(change: DataChange, before: Recipe, now: Recipe) -> ChangeVerdict:
    """Return the verdict of a resume on one change.

    It follows from the change class that the field declares, and from checkpoint.allow_change.
    """
    change_class, resume = (
        find_change_policy(change.path, now)
        or find_change_policy(change.path, before)
        or ("numerics", False)
    )
    verdict = classify_field(change.path, change_class, resume=resume)
    if verdict == "refused" and change.path not in FIXED_PATHS:
        return "reported" if is_path_listed(change.path, now.checkpoint.allow_change) else verdict
    return verdict


def classify_field(path: DataPath, change_class: ChangeClass, *, resume: bool) -> ChangeVerdict:
    """Return the verdict of a resume on a change at `path` without checkpoint.allow_change.

    `change_class` and `resume` are what the field declares.
    """
    if path in FIXED_PATHS:
        return "refused"
    is_observer = path[0] in OBSERVER_SECTIONS and path not in SPLIT_PATHS
    if change_class == "bookkeeping" or is_observer:
        return "silent"
    if change_class == "performance" or resume or path[0] == SCHEDULE:
        return "reported"
    return "refused"


def format_resume_policy(path: DataPath, setting: FieldMetadata) -> str:
    """Format the verdict of a resume on a change of the field at `path`."""
    if classify_field(path, setting.change, resume=setting.resume) != "refused":
        return "a resume allows a change"
    listed = "" if path in FIXED_PATHS else ", unless checkpoint.allow_change names it"
    return f"a resume refuses a change{listed}"


def is_path_listed(path: DataPath, named: Sequence[str]) -> bool:
    """Return whether one of the names is this path, or a section around it."""
    text = format_path(path)
    return any(text == name or text.startswith((f"{name}.", f"{name}[")) for name in named)


def find_change_policy(path: DataPath, run: Recipe) -> tuple[ChangeClass, bool] | None:
    """Return the change class of the field at `path`, and whether a resume allows changes.

    The nearest field above `path` decides if that field declares none. Return None if no field
    does.
    """
    data = dump_config(run)
    while path:
        field = find_field_info(type(run), data, path)
        setting = (
            find_field_metadata(field) if field is not None else None
        ) or find_component_field_info(type(run), data, path)
        if setting is not None:
            return setting.change, setting.resume
        path = path[:-1]
    return None


def find_component_field_info(
    model: type[Recipe], data: Any, path: DataPath
) -> FieldMetadata | None:
    """Return the metadata of the `name` field of the component at `path`.

    For a list of components, that of its first one.
    """
    items = find_value(data, path)
    place = (*path, 0) if isinstance(items, list) and items else path
    config = find_config_class(model, data, place)
    field = (
        config.model_fields.get("name")
        if config is not None and issubclass(config, ComponentConfig)
        else None
    )
    return None if field is None else find_field_metadata(field)


def suggest_allowed_changes(paths: Sequence[DataPath]) -> str:
    """Return the advice to allow changes, with the override that allows a few of them.

    checkpoint.allow_change takes fields and sections, not items of a list.
    """
    fields = dict.fromkeys(
        format_path(tuple(takewhile(lambda step: not isinstance(step, int), path)))
        for path in paths
    )
    advice = "list the intended ones in checkpoint.allow_change"
    if not 0 < len(fields) <= MAX_FIELDS_SHOWN:
        return advice
    return f"{advice}, as in 'checkpoint.allow_change=[{','.join(fields)}]'"


def format_resume_change(change: DataChange) -> str:
    """Format a change as `optimizer.lr 0.0003 -> 0.001`."""
    return (
        f"{format_path(change.path)} {format_short_value(change.left)} -> "
        f"{format_short_value(change.right)}"
    )
