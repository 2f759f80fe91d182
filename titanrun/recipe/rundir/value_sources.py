"""Sources of the values in a run directory, which survive a resume from its own resolved.yaml."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.recipe.resolving.multi_stage import STAGES_FILE
from titanrun.recipe.resolving.provenance import build_source_report, collect_value_sources
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.rundir.checkpoint_lookup import find_enclosing_run
from titanrun.recipe.rundir.run_files import RESOLVED, SOURCES, read_json_or_empty

DECIDED = "decided"


def build_run_sources(resolved: Resolved, argv: Sequence[str]) -> dict[str, object]:
    """Return the content of resolved.sources.json for a start of a run.

    A value that is taken from the resolved.yaml of this run, or of the run that it is forked from,
    and that was decided there, is still decided: nobody has written it. Likewise for a stage, whose
    values are taken from the recipe of all stages.
    """
    report = build_source_report(collect_value_sources(resolved), resolved.tree, list(argv))
    values: dict[str, dict[str, Any]] = report["values"]  # type: ignore[assignment]
    earlier: dict[str, dict[str, dict[str, Any]]] = {}
    for path, entry in values.items():
        file = str(entry.get("file", ""))
        if Path(file).name not in (RESOLVED, STAGES_FILE):
            continue
        if file not in earlier:
            run = find_earlier_run(Path(file), resolved.recipe.dump_folder)
            earlier[file] = {} if run is None else load_value_sources(run)
        if earlier[file].get(path, {}).get("source") == DECIDED:
            values[path] = {"source": DECIDED}
    return report


def find_earlier_run(file: Path, dump_folder: str | None) -> Path | None:
    """Return the run directory whose sources apply to the values of a file.

    `dump_folder` is that of the new start: the folder of a stage is named as the stage.
    """
    if file.name != STAGES_FILE:
        return find_resolved_run(file)
    return None if dump_folder is None else file.parent / Path(dump_folder).name


def find_resolved_run(file: Path) -> Path | None:
    """Return the run directory of a resolved.yaml, which may be that of one of its checkpoints."""
    return file.parent if (file.parent / SOURCES).is_file() else find_enclosing_run(file.parent)


def load_value_sources(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the source of each value by path. Return an empty dict if none are recorded."""
    values = read_json_or_empty(folder / SOURCES).get("values")
    return values if isinstance(values, dict) else {}


def is_decided(folder: Path, path: str) -> bool:
    """Return whether a value of the run in `folder` followed from others, instead of written."""
    return load_value_sources(folder).get(path, {}).get("source") == DECIDED
