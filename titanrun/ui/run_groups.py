"""Comparison of runs: results, differing settings, and which of them differ only in the seed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.config.base import dump_config
from titanrun.runs.lineage import compute_x_offset
from titanrun.runs.metric_series import XAxis
from titanrun.runs.run_comparison import RunData, compare_runs, load_related_runs
from titanrun.runs.run_state import get_host_info, get_run_state
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.run_details import list_metrics

SEED = ("debug", "seed")
X_AXES: tuple[XAxis, ...] = ("step", "tokens", "time")
# rows that describe the machine rather than the run
HOST_ROWS = ("host",)


def compare_run_folders(catalog: RunCatalog, run_ids: Sequence[str]) -> dict[str, Any]:
    """Return the rows in which runs differ, the metrics of any of them, and groups of seeds."""
    folders = [catalog.find(run_id) for run_id in run_ids]
    runs, _ = load_related_runs([str(folder) for folder in folders])
    here = get_host_info()
    states = [get_run_state(run.summary, here) for run in runs]
    rows = [
        {"group": row.group, "name": row.name, "values": list(row.values)}
        for row in compare_runs(runs, states)
    ]
    metrics = dict.fromkeys(name for folder in folders for name in list_metrics(folder))
    return {
        "runs": [
            catalog.describe_entry(run.summary, state)
            for run, state in zip(runs, states, strict=True)
        ],
        "rows": rows,
        "metrics": list(metrics),
        "groups": group_by_recipe(runs, run_ids),
        "links": list_links(catalog, folders, run_ids),
        "starts": find_axis_starts(runs, run_ids),
    }


def find_axis_starts(
    runs: Sequence[RunData], run_ids: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return where on each axis the curve of a fork begins that is compared with a relative."""
    return {
        run_id: {x: compute_x_offset(run.ancestors, x) for x in X_AXES}
        for run, run_id in zip(runs, run_ids, strict=True)
        if run.ancestors
    }


def group_by_recipe(runs: Sequence[RunData], run_ids: Sequence[str]) -> list[list[str]]:
    """Return the runs that differ in nothing but name and seed, in groups of several."""
    groups: dict[str, list[str]] = {}
    for run, run_id in zip(runs, run_ids, strict=True):
        data = dump_config(run.recipe)
        data.pop("name", None)
        data["debug"] = {key: value for key, value in data["debug"].items() if key != SEED[1]}
        groups.setdefault(json.dumps(data, sort_keys=True, default=str), []).append(run_id)
    return [group for group in groups.values() if len(group) > 1]


def list_links(
    catalog: RunCatalog, folders: Sequence[Path], run_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Return which of the runs began from a checkpoint, also of a run that is not among them."""
    found = []
    for folder, run_id in zip(folders, run_ids, strict=True):
        parent = catalog.describe_parent(catalog.load_parent(folder), folder)
        if parent is not None:
            found.append({"id": run_id, "parent": parent})
    return found
