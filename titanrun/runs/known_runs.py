"""Index of the runs of this user, wherever their folders are, by the name of each."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from titanrun.config.trust import get_state_folder
from titanrun.recipe.rundir.run_files import RUN_JSON, read_json_or_empty

FOLDER = "known_runs"
DIGITS = 32


def remember_run(run: Path, name: str | None, environment: Mapping[str, str]) -> None:
    """Add a run to the index, unless the folder of the index cannot be written.

    Args:
        run: Folder of the run.
        name: Name of the run.
        environment: Environment variables, which say where the index is.
    """
    place = str(run.resolve())
    digest = hashlib.sha256(place.encode()).hexdigest()[:DIGITS]
    # RuntimeError: there is no home folder
    with suppress(OSError, RuntimeError):
        folder = get_state_folder(environment) / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry = folder / f"{digest}.json"
        # one file a run: runs that start at the same time do not write the same one
        entry.write_text(json.dumps({"run": place, "name": name}) + "\n", encoding="utf-8")


def find_known_runs(named: str, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of the remembered runs with a name, by name of the folder.

    Runs whose folder is gone are removed from the index.
    """
    found = []
    try:
        folder = get_state_folder(environment) / FOLDER
    except RuntimeError:
        return []  # there is no home folder
    for entry in folder.glob("*.json") if folder.is_dir() else ():
        data = read_json_or_empty(entry)
        run = Path(str(data.get("run")))
        if named not in (data.get("name"), run.name):
            continue
        if (run / RUN_JSON).is_file():
            found.append(run)
        else:
            with suppress(OSError):
                entry.unlink(missing_ok=True)
    return sorted(found)
