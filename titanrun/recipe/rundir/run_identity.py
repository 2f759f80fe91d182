"""Identity of a run: an id in run.json and in each manifest tells whose checkpoint one is.

Of a checkpoint without an id, as earlier versions saved it, the recipe is compared.
"""

import hashlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.manifest import (
    Manifest,
    is_checkpoint,
    list_step_folders,
    read_manifest,
)
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config.base import dump_config
from titanrun.config.data_diff import diff_data
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.recipe.comparing.resume_policy import classify_resume_changes, format_resume_change
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.rundir.run_files import RESOLVED, RUN_JSON, read_json_or_empty

log = logging.getLogger(__name__)

ID_BYTES = 16
MAX_CHANGES_SHOWN = 4
# runs of every layout and of changed recipes start from it
SEED_STEP = 0


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Identity of a run that resumes.

    Args:
        run_id: Id in its run.json, None if that has none.
        resolved_text: Its resolved recipe, as its checkpoints store it.
    """

    run_id: str | None
    resolved_text: str

    def check_owner(self, checkpoint: AnyPath) -> None:
        """Raise a problem `checkpoint` if another run saved the checkpoint.

        At a storage URL, where runs of the same recipe continue from any run directory, and where
        the checkpoint has no id, another recipe is another run.
        """
        manifest = read_manifest(checkpoint)
        if self.run_id is None or manifest.run == self.run_id:
            return
        if isinstance(checkpoint, Path) and is_foreign(manifest, self.run_id):
            raise problem_error(
                "checkpoint",
                f"{checkpoint} belongs to another run: its run is {manifest.run}, this one is "
                f"{self.run_id}",
                hint="move it away; checkpoint.initial_load_path starts a run from its weights",
            )
        if manifest.step != SEED_STEP:
            self._check_recipe(checkpoint, manifest)

    def _check_recipe(self, checkpoint: AnyPath, manifest: Manifest) -> None:
        if manifest.recipe == hashlib.sha256(self.resolved_text.encode()).hexdigest():
            return
        now = load_resolved_text(self.resolved_text)
        try:
            before = load_resolved_text((checkpoint / RESOLVED).read_text(encoding="utf-8"))
        except (OSError, ValueError, ProblemsFound) as error:
            log.warning("%s cannot be compared with this run: %s", checkpoint / RESOLVED, error)
            return
        changes = diff_data(dump_config(before), dump_config(now))
        refused = classify_resume_changes(changes, before, now).refused_changes
        if refused:
            listed = format_word_list(
                map(format_resume_change, refused), conjunction="and", max_words=MAX_CHANGES_SHOWN
            )
            raise problem_error(
                "checkpoint",
                f"{checkpoint} belongs to a run of another recipe: {listed}",
                hint="move it away, undo the changes, or list the intended ones in "
                "checkpoint.allow_change",
            )


def is_foreign(manifest: Manifest, run_id: str | None) -> bool:
    """Return whether a manifest names another run than this one."""
    return run_id is not None and manifest.run not in (None, run_id)


def read_run_id(run: Path) -> str | None:
    """Return the id in the run.json of a run directory, None if there is none."""
    return find_run_id(read_json_or_empty(run / RUN_JSON))


def find_run_id(record: Mapping[str, Any]) -> str | None:
    """Return the id in the content of run.json, None if there is none."""
    found = record.get("id")
    return found if isinstance(found, str) else None


def choose_run_id(record: Mapping[str, Any], checkpoints: AnyPath) -> str:
    """Return the id for run.json: its own, else a new one.

    Without a run.json, the run is the one that saved the newest of its checkpoints.
    """
    known = find_run_id(record) or (None if record else find_saved_run_id(checkpoints))
    return known or secrets.token_hex(ID_BYTES)


def find_saved_run_id(checkpoints: AnyPath) -> str | None:
    """Return the id of the run that saved the newest checkpoint in a folder."""
    for folder in reversed(list(list_step_folders(checkpoints).values())):
        if is_checkpoint(folder):
            try:
                return read_manifest(folder).run
            except ProblemsFound:
                continue
    return None
