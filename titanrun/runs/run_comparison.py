"""Comparison of several runs: results, and all settings and circumstances that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.base import dump_config
from titanrun.config.fields import ChangeClass as ChangeClass
from titanrun.config.problems import problem_error
from titanrun.config.tree import format_path
from titanrun.recipe.comparing.resume_policy import find_change_policy
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.provenance import list_data_leaves
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RESOLVED,
    RUN_JSON,
    get_mapping,
    get_starts,
    get_text_value,
    read_json_or_empty,
)
from titanrun.runs.lineage import (
    Ancestor,
    compute_step_offset,
    find_related_ancestors,
    format_start,
)
from titanrun.runs.run_summary import RunSummary, load_run_summary

# the settings that affect results come first
CLASSES: tuple[ChangeClass, ...] = ("numerics", "performance", "bookkeeping")
MISSING = None

Lines = Mapping[int, Mapping[str, Any]]
Alignment = Literal["step", "tokens", "lineage"]


OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class RunData:
    """Data of a run directory: summary, recipe, last start, and logged steps by number.

    `ancestors` are the checkpoints that it began from, if it is compared with a relative.
    """

    summary: RunSummary
    recipe: Recipe
    last_start: Mapping[str, Any]
    metrics_by_step: Lines
    ancestors: Sequence[Ancestor] = ()


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One compared item with its value in each run, None if a run has no value."""

    group: str
    name: str
    values: tuple[object, ...]


def load_run_data(path: str) -> RunData:
    """Load the run at a path. Raise ProblemsFound if it does not exist."""
    folder = get_run_folder(path)
    starts = get_starts(read_json_or_empty(folder / RUN_JSON)) or [{}]
    logged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else []
    return RunData(
        load_run_summary(folder),
        load_resolved(folder / RESOLVED),
        starts[-1],
        {line["step"]: line for line in logged},
    )


def load_related_runs(
    paths: Sequence[str], align: Alignment | None = None
) -> tuple[list[RunData], Alignment]:
    """Load the runs at some paths, and return what their logged lines are numbered by.

    Args:
        paths: Run directories.
        align: By the run's own steps or tokens, or by steps that go on from those of relatives.
            None: by lineage if two of the runs are related, else by step.

    Raises:
        ProblemsFound: One does not exist.
    """
    runs = [load_run_data(path) for path in paths]
    if align == "tokens":
        return [replace(run, metrics_by_step=number_by_tokens(run)) for run in runs], align
    found = find_related_ancestors([get_run_folder(path) for path in paths])
    if align == "step" or (align is None and not any(found.values())):
        return runs, "step"
    return [
        replace(
            run,
            metrics_by_step={
                step + compute_step_offset(ancestors): line
                for step, line in run.metrics_by_step.items()
            },
            ancestors=ancestors,
        )
        for run, ancestors in (
            (run, found.get(Path(path), [])) for run, path in zip(runs, paths, strict=True)
        )
    ], "lineage"


def number_by_tokens(run: RunData) -> Lines:
    """Return the logged lines by the tokens that the run had seen."""
    return {
        int(line["tokens_seen"]): line
        for line in run.metrics_by_step.values()
        if "tokens_seen" in line
    }


def get_run_folder(path: str) -> Path:
    """Return the path of a run directory. Raise ProblemsFound if it is not one."""
    folder = Path(path)
    if not folder.is_dir():
        raise problem_error(
            "file", f"folder not found: '{path}'", hint="run titanrun runs ls to list the runs"
        )
    if not (folder / RESOLVED).is_file() or not (folder / RUN_JSON).is_file():
        raise problem_error(
            "file",
            f"'{path}' is not a run directory: it has no {RESOLVED} with a {RUN_JSON}",
            hint="pass a folder created by titanrun train",
        )
    return folder


def compare_runs(
    runs: Sequence[RunData], states: Sequence[str], align: Alignment = "step"
) -> list[ComparisonRow]:
    """Return all compared items: the outcome, settings by what they affect, circumstances.

    The circumstances are commit, code, packages and machine.
    """
    return [
        *build_outcome_rows(runs, states, align),
        *build_setting_rows([run.recipe for run in runs]),
        *build_environment_rows([run.last_start for run in runs]),
    ]


def build_outcome_rows(
    runs: Sequence[RunData], states: Sequence[str], align: Alignment
) -> list[ComparisonRow]:
    """Return the progress and results of each run.

    Losses are also compared at the last step, or number of tokens, that all of them logged. Without
    any, none are paired.
    """
    entries = [run.summary for run in runs]
    steps = tuple(run.summary.step + compute_step_offset(run.ancestors) for run in runs)
    starts = tuple(format_start(run.ancestors) if run.ancestors else None for run in runs)
    found = [
        ComparisonRow(OUTCOME, "state", tuple(states)),
        ComparisonRow(OUTCOME, "began at", starts),
        ComparisonRow(OUTCOME, "step", steps),
        ComparisonRow(OUTCOME, "loss", tuple(entry.loss for entry in entries)),
    ]
    common = find_last_common_step([run.metrics_by_step for run in runs])
    ends = tuple(max(run.metrics_by_step, default=None) for run in runs)
    if common is None and all(end is not None for end in ends):
        unit = "tokens" if align == "tokens" else "steps"
        nothing = (f"no common {unit}", *(None for _ in runs[1:]))
        found.append(ComparisonRow(OUTCOME, "loss in common", nothing))
    elif common is not None and any(end != common for end in (*ends, *steps)):
        at_common = tuple(run.metrics_by_step[common].get("loss") for run in runs)
        where = f"{common:,} tokens" if align == "tokens" else f"step {common}"
        found.append(ComparisonRow(OUTCOME, f"loss at {where}", at_common))
    found.append(
        ComparisonRow(OUTCOME, "best validation loss", tuple(entry.validation for entry in entries))
    )
    found.append(ComparisonRow(OUTCOME, "tokens/s", tuple(entry.tps for entry in entries)))
    found.append(ComparisonRow(OUTCOME, "seconds", tuple(entry.seconds for entry in entries)))
    return [row for row in found if any(value is not None for value in row.values)]


def find_last_common_step(lines: Sequence[Lines]) -> int | None:
    """Return the last step that all runs logged, or None."""
    common = set.intersection(*(set(run) for run in lines))
    return max(common, default=None)


def build_setting_rows(recipes: Sequence[Recipe]) -> list[ComparisonRow]:
    """Return the recipe values that differ, those that move the loss first."""
    leaves = [
        {path: value for path, value in list_data_leaves(dump_config(recipe)) if path != ("name",)}
        for recipe in recipes
    ]
    found: dict[ChangeClass, list[ComparisonRow]] = {name: [] for name in CLASSES}
    for path in dict.fromkeys(path for run in leaves for path in run):
        values = tuple(run.get(path, MISSING) for run in leaves)
        if any(value != values[0] or type(value) is not type(values[0]) for value in values[1:]):
            meaning = next(
                (
                    known
                    for known in (find_change_policy(path, recipe) for recipe in recipes)
                    if known is not None
                ),
                ("numerics", False),
            )
            found[meaning[0]].append(ComparisonRow(meaning[0], format_path(path), values))
    return [row for name in CLASSES for row in found[name]]


def build_environment_rows(starts: Sequence[Mapping[str, Any]]) -> list[ComparisonRow]:
    """Return the differing circumstances at the last start: commit, code, packages, machine."""
    described = [get_environment_facts(start) for start in starts]
    names = dict.fromkeys(name for one in described for name in one)
    found = [
        ComparisonRow("surroundings", name, tuple(one.get(name) for one in described))
        for name in names
    ]
    return [row for row in found if any(value != row.values[0] for value in row.values[1:])]


def get_environment_facts(start: Mapping[str, Any]) -> dict[str, object]:
    """Return the circumstances of a start by name."""
    environment = get_mapping(start, "environment")
    git = get_mapping(environment, "git")
    found = {
        "git commit": (get_text_value(git, "commit") or "")[:12] or None,
        "uncommitted changes": git.get("diff") or ("none" if git else None),
    }
    found |= {"titanrun's code": (get_text_value(environment, "code") or "")[:12] or None}
    found |= {key: environment.get(key) for key in ("python", "platform", "host")}
    found |= {
        f"package {name}": version for name, version in get_mapping(environment, "packages").items()
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
        for key, value in get_mapping(start, "machine").items()
    }
    return {**found, "ranks": get_mapping(start, "decided").get("ranks")}
