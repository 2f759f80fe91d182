"""Several runs beside each other: the numbers they reached, and every setting and circumstance in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.metrics.jsonl import read_metrics
from titanrun.config.base import dump
from titanrun.config.fields import Change as ChangeClass
from titanrun.config.problems import fail
from titanrun.config.tree import path_text
from titanrun.ledger.entry import Entry, read_entry
from titanrun.recipe.drift import meaning_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.run_files import METRICS, RESOLVED, RUN_JSON, read_json
from titanrun.recipe.sources import data_leaves

# what decides the numbers comes first
CLASSES: tuple[ChangeClass, ...] = ("numerics", "performance", "bookkeeping")
MISSING = None

Lines = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Known:
    """A run directory, read: its entry, its recipe, its last start, and its logged steps by number."""

    entry: Entry
    recipe: Recipe
    start: Mapping[str, Any]
    lines: Lines


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is compared, with its value in each run; None where a run has none."""

    group: str
    name: str
    values: tuple[object, ...]


def read_known(named: str) -> Known:
    """The run at a path. Raises ProblemsFound where there is none."""
    folder = run_folder(named)
    starts = read_json(folder / RUN_JSON).get("starts") or [{}]
    logged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else []
    return Known(
        read_entry(folder),
        read_resolved(folder / RESOLVED),
        starts[-1],
        {line["step"]: line for line in logged},
    )


def run_folder(named: str) -> Path:
    """A folder that is a run directory. Raises ProblemsFound."""
    folder = Path(named)
    if not folder.is_dir():
        raise fail(
            "file", f"there is no folder '{named}'", help="titanrun runs ls lists what there is"
        )
    if not (folder / RESOLVED).is_file() or not (folder / RUN_JSON).is_file():
        raise fail(
            "file",
            f"'{named}' is no run directory: it holds no {RESOLVED} with a {RUN_JSON}",
            help="name a folder that train made",
        )
    return folder


def rows(runs: Sequence[Known], states: Sequence[str]) -> list[Row]:
    """All that is compared: the outcome, then settings by what they decide, then commit, code, packages and machine."""
    return [
        *outcome(runs, states),
        *settings([run.recipe for run in runs]),
        *surroundings([run.start for run in runs]),
    ]


def outcome(runs: Sequence[Known], states: Sequence[str]) -> list[Row]:
    """How far each run is and what it reached; losses also at the last step that all of them logged."""
    entries = [run.entry for run in runs]
    found = [
        Row("outcome", "state", tuple(states)),
        Row("outcome", "step", tuple(entry.step for entry in entries)),
        Row("outcome", "loss", tuple(entry.loss for entry in entries)),
    ]
    common = last_common_step([run.lines for run in runs])
    if common is not None and any(entry.step != common for entry in entries):
        at_common = tuple(run.lines[common].get("loss") for run in runs)
        found.append(Row("outcome", f"loss at step {common}", at_common))
    found.append(
        Row("outcome", "best validation loss", tuple(entry.validation for entry in entries))
    )
    found.append(Row("outcome", "tokens/s", tuple(entry.tps for entry in entries)))
    found.append(Row("outcome", "seconds", tuple(entry.seconds for entry in entries)))
    return [row for row in found if any(value is not None for value in row.values)]


def last_common_step(lines: Sequence[Lines]) -> int | None:
    """The last step that all runs logged; None where there is none."""
    common = set.intersection(*(set(run) for run in lines))
    return max(common, default=None)


def settings(recipes: Sequence[Recipe]) -> list[Row]:
    """The values of recipes that differ, those that move the loss first."""
    leaves = [
        {path: value for path, value in data_leaves(dump(recipe)) if path != ("name",)}
        for recipe in recipes
    ]
    found: dict[ChangeClass, list[Row]] = {name: [] for name in CLASSES}
    for path in dict.fromkeys(path for run in leaves for path in run):
        values = tuple(run.get(path, MISSING) for run in leaves)
        if any(value != values[0] or type(value) is not type(values[0]) for value in values[1:]):
            meaning = next(
                (
                    known
                    for known in (meaning_of(path, recipe) for recipe in recipes)
                    if known is not None
                ),
                ("numerics", False),
            )
            found[meaning[0]].append(Row(meaning[0], path_text(path), values))
    return [row for name in CLASSES for row in found[name]]


def surroundings(starts: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What differs around runs at their last start: commit, code, packages, machine."""
    described = [circumstances(start) for start in starts]
    names = dict.fromkeys(name for one in described for name in one)
    found = [Row("surroundings", name, tuple(one.get(name) for one in described)) for name in names]
    return [row for row in found if any(value != row.values[0] for value in row.values[1:])]


def circumstances(start: Mapping[str, Any]) -> dict[str, object]:
    """The circumstances of a start by name."""
    environment = start.get("environment") or {}
    git = environment.get("git") or {}
    found = {
        "git commit": (git.get("commit") or "")[:12] or None,
        "uncommitted changes": git.get("diff") or ("none" if git else None),
    }
    found |= {"titanrun's code": (environment.get("code") or "")[:12] or None}
    found |= {key: environment.get(key) for key in ("python", "platform", "host")}
    found |= {
        f"package {name}": version for name, version in (environment.get("packages") or {}).items()
    }
    found |= {
        f"plug-in {plugin['name']}": plugin["version"]
        for plugin in environment.get("plugins") or ()
    }
    found |= {
        f"input {then['path']}": then.get("xxh3_128", "missing")
        for then in start.get("inputs") or ()
    }
    found |= {
        f"machine {key.replace('_', ' ')}": str(value)
        for key, value in (start.get("machine") or {}).items()
    }
    return {**found, "ranks": (start.get("decided") or {}).get("ranks")}
