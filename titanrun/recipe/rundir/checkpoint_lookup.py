"""Lookup of checkpoints by a step-N folder, a run directory, or a checkpoint folder."""

import atexit
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.spec.manifest import (
    STEP_FOLDER,
    Manifest,
    is_checkpoint,
    list_step_folders,
    read_manifest,
    try_read_manifest,
)
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    StoragePath,
    is_storage_path,
    parse_storage_path,
)
from titanrun.components.checkpoints.spec.verification import find_damaged_files
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.base import dump_config
from titanrun.config.data_diff import diff_data
from titanrun.config.near_path import suggest_near_path
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.recipe.comparing.resume_policy import classify_resume_changes, format_resume_change
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.multi_stage import STAGES_FILE
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.not_a_checkpoint import NAME_RUN, not_a_checkpoint_error
from titanrun.recipe.rundir.run_files import METRICS, RESOLVED
from titanrun.recipe.rundir.run_identity import is_foreign, read_run_id


def get_checkpoints_by_step(named: AnyPath) -> dict[int, AnyPath]:
    """Return the step-N folders of a run directory or checkpoint folder by ascending step.

    Incomplete checkpoints are included.
    """
    for folder in (named, get_checkpoint_folder(named)):
        if found := list_step_folders(folder):
            return dict(found)
    return {}


def load_manifests(run: AnyPath) -> dict[int, Manifest]:
    """Load the manifests of all checkpoints that have a valid one.

    The others are never deleted because of their age.
    """
    found = {}
    for step, folder in get_checkpoints_by_step(run).items():
        try:
            found[step] = read_manifest(folder)
        except ProblemsFound:
            continue
    return found


def select_checkpoint(named: AnyPath, *, takes_models: bool = False) -> AnyPath:
    """Return the checkpoint that `named` is, or the newest one below it.

    Args:
        named: a checkpoint, a run directory or a folder of checkpoints.
        takes_models: whether the help names folders of models, which the command takes, too.

    Raises:
        ProblemsFound: With code `checkpoint` if there is none.
    """
    if is_checkpoint(named):
        return named
    whole = [path for path in get_checkpoints_by_step(named).values() if is_checkpoint(path)]
    if not whole:
        if isinstance(named, Path) and not named.exists():
            raise missing_folder_error(named)
        if isinstance(named, Path) and is_huggingface_folder(named):
            raise problem_error(
                "checkpoint",
                f"'{named}' is a model, not a run or a checkpoint",
                hint=f"to train it: titanrun init --kind sft --model {named} --data FILE "
                "-o mine.yaml, then titanrun train mine.yaml",
            )
        stages = list_stage_runs(named)
        if isinstance(named, Path) and not stages:
            raise not_a_checkpoint_error(named, takes_models=takes_models)
        message = f"'{named}' is neither a checkpoint nor a run directory with one"
        hint = (
            f"it holds one run per stage: name {format_word_list(stages)}" if stages else NAME_RUN
        )
        raise problem_error("checkpoint", message, hint=hint)
    return whole[-1]


def missing_folder_error(folder: Path, *, hint: str | None = None) -> ProblemsFound:
    """Build the problem of a folder that is not there, with the path that may be meant.

    For a step of a run it lists those that there are. `hint` says what to do without such a path.
    """
    message = f"folder not found: '{folder}'"
    if STEP_FOLDER.fullmatch(folder.name) and (known := get_checkpoints_by_step(folder.parent)):
        paths = [f"'{path}'" for path in known.values()]
        listed = format_word_list(paths, conjunction="and", max_words=5)
        return problem_error("checkpoint", message, hint=f"the checkpoints there are {listed}")
    near = suggest_near_path(str(folder), only_folders=True)
    return problem_error("checkpoint", message, hint=near or hint)


def list_stage_runs(named: AnyPath) -> list[str]:
    """Return the runs with checkpoints in the folder of a multi-stage recipe.

    Return an empty list if `named` is no such folder.
    """
    if not isinstance(named, Path) or not (named / STAGES_FILE).is_file():
        return []
    return [
        str(run) for run in sorted(named.iterdir()) if run.is_dir() and get_checkpoints_by_step(run)
    ]


def select_verified_checkpoint(named: AnyPath) -> tuple[AnyPath, dict[AnyPath, list[str]]]:
    """Return the named checkpoint, or the newest undamaged one of a run.

    The second value maps newer checkpoints to their damage. A checkpoint that is named itself is
    returned unverified.

    Raises:
        ProblemsFound: With code `checkpoint`: one problem if there is none, one per checkpoint if
            all are damaged.
    """
    if is_checkpoint(named):
        return named, {}
    newest = select_checkpoint(named)
    damaged: dict[AnyPath, list[str]] = {}
    for folder in (
        path
        for path in reversed(list(get_checkpoints_by_step(named).values()))
        if is_checkpoint(path)
    ):
        reasons = find_checkpoint_damage(folder) or find_other_owner(folder)
        if not reasons:
            return folder, damaged
        damaged[folder] = reasons
    hint = "restore one from a copy"
    raise ProblemsFound(
        Problem(
            "checkpoint",
            f"{folder} cannot be used: {'; '.join(reasons)}",
            hint=hint if folder == newest else None,
        )
        for folder, reasons in damaged.items()
    )


def find_checkpoint_damage(folder: AnyPath) -> list[str]:
    """Return what is wrong with a checkpoint after reading every byte of it.

    Raises:
        OtherFormatError: Another version of titanrun wrote it.
    """
    manifest, reasons = try_read_manifest(folder)
    return reasons if manifest is None else find_damaged_files(folder, manifest, "always")


def find_other_owner(folder: AnyPath) -> list[str]:
    """Return why a checkpoint is not one of the run directory that it is in, empty if it is."""
    run = find_enclosing_run(folder)
    if run is None:
        return []
    run_id, manifest = read_run_id(run), read_manifest(folder)
    if not is_foreign(manifest, run_id):
        return []
    return [f"it belongs to another run: its run is {manifest.run}, that of {run} is {run_id}"]


def find_enclosing_run(checkpoint: AnyPath) -> Path | None:
    """Return the run directory of a checkpoint, or None if it was moved out of it."""
    if isinstance(checkpoint, StoragePath):
        return None
    folder = checkpoint.resolve().parent
    return next(
        (
            parent
            for parent in folder.parents
            if (parent / RESOLVED).is_file() and get_checkpoint_folder(parent) == folder
        ),
        None,
    )


def get_checkpoint_folder(run: AnyPath) -> AnyPath:
    """Return the folder of a run's checkpoints, as its resolved recipe names it."""
    named = CheckpointConfig().folder
    if isinstance(run, StoragePath):
        return run / named
    if (run / RESOLVED).is_file() and not is_checkpoint(run):
        named = load_resolved(run / RESOLVED).checkpoint.folder
    return locate_checkpoint_folder(run, named)


def locate_checkpoint_folder(run: Path, named: str) -> AnyPath:
    """Return the checkpoint folder that a recipe names.

    It is inside the run directory unless it is a storage path.
    """
    return parse_storage_path(named) if is_storage_path(named) else run / named


def to_absolute_path(named: AnyPath) -> str:
    """Return a path in a form that means the same from every folder."""
    return str(named.resolve() if isinstance(named, Path) else named)


def fetch_resolved_recipe(checkpoint: AnyPath) -> str:
    """Return a local file with the recipe of a checkpoint.

    For a checkpoint on object storage this is a copy that is removed when the process exits.
    """
    if isinstance(checkpoint, Path):
        return str(checkpoint / RESOLVED)
    folder = mkdtemp(prefix="titanrun-")
    atexit.register(rmtree, folder, ignore_errors=True)
    file = Path(folder) / RESOLVED
    file.write_text((checkpoint / RESOLVED).read_text(), encoding="utf-8")
    return str(file)


def needs_initial_weights(run: Recipe, run_dir: Path | None = None) -> bool:
    """Return whether a run reads the weights that it starts from, or once started from.

    A run that resumes from a checkpoint of its own with all weights does not, unless they are those
    of a reference. `run_dir` is its folder if dump_folder does not name it.
    """
    section = run.checkpoint
    # the model without its adapters is no copy
    has_copy = (run.loss.needs_reference and find_lora_converter(run) is None) or (
        run.rl is not None and run.rl.reference == "frozen_copy"
    )
    named = run_dir or (None if run.dump_folder is None else Path(run.dump_folder))
    if named is None or not section.enable or section.adapters_only or has_copy:
        return True
    folder = locate_checkpoint_folder(named, section.folder)
    if isinstance(folder, StoragePath):
        return True  # an address is read when the run starts
    return not any(is_checkpoint(found) for found in list_step_folders(folder).values())


def check_checkpoints_match_recipe(run: Recipe) -> None:
    """Raise if a new run would save to a storage path with checkpoints of another recipe.

    A run of the same recipe resumes from them.
    """
    section = run.checkpoint
    if not section.enable or not is_storage_path(section.folder):
        return
    found = [
        path
        for path in list_step_folders(parse_storage_path(section.folder)).values()
        if is_checkpoint(path)
    ]
    if not found:
        return
    before = load_resolved(Path(fetch_resolved_recipe(found[-1])))
    refused = classify_resume_changes(
        diff_data(dump_config(before), dump_config(run)), before, run
    ).refused_changes
    if refused:
        changes = format_word_list(
            map(format_resume_change, refused), conjunction="and", max_words=4
        )
        message = f"{section.folder} holds checkpoints of another recipe: {changes}"
        hint = (
            "name another storage path, undo the changes, "
            "or list the intended ones in checkpoint.allow_change"
        )
        raise problem_error("conflict", message, path=("checkpoint", "folder"), hint=hint)


def find_parent_checkpoint(run: Recipe) -> dict[str, Any] | None:
    """Return the checkpoint that a run starts from, with its run and the tokens seen until then.

    Return None if it starts from random weights or from files of another kind.
    """
    section = run.checkpoint
    if section.initial_load_path is None or section.initial_load_in_hf:
        return None
    named = parse_storage_path(section.initial_load_path)
    found = (
        [named]
        if is_checkpoint(named)
        else [path for path in get_checkpoints_by_step(named).values() if is_checkpoint(path)]
    )
    if not found:
        return None
    manifest, parent = read_manifest(found[-1]), find_enclosing_run(found[-1])
    return {
        "run": None if parent is None else to_absolute_path(parent),
        "checkpoint": to_absolute_path(found[-1]),
        "step": manifest.step,
        "tokens": None if parent is None else find_tokens_seen(parent, manifest.step),
        "recipe": manifest.recipe,
    }


def find_tokens_seen(run: Path, step: int) -> int | None:
    """Return the tokens that a run had seen after a step, None if it did not log that step."""
    try:
        lines = read_metrics(run / METRICS)
    except ProblemsFound:
        return None
    found = next((line for line in lines if line["step"] == step), {}).get("tokens_seen")
    return found if isinstance(found, int) else None
