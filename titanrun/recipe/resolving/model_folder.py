"""What is wrong with a folder that a recipe or a command names as a Hugging Face model."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from titanrun.config.problems import DataPath, Problem
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.huggingface_config import CONFIG, is_huggingface_folder
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.resolving.hub_models import suggest_fetching
from titanrun.recipe.rundir.peft_folder import build_lone_adapters_problem, has_only_adapters
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_recipe import names_adapters, read_plain_recipe

MODEL_FOLDER: DataPath = ("model", "hf_assets_path")
MAX_FOLDERS_LISTED = 3
PIPELINE_INDEX = "model_index.json"


def find_model_folder_problem(named: str, path: DataPath = ()) -> Problem | None:
    """Return the problem of a folder that is missing, is a run, or holds folders of models.

    Return None for other folders, also for those without config.json.
    """
    found = find_missing_or_run_problem(named, path)
    models = list_model_folders(Path(named)) if found is None else []
    if not models:
        return found
    hint = f"did you mean {format_word_list(models, max_words=MAX_FOLDERS_LISTED)}?"
    return Problem("file", f"'{named}' has no {CONFIG}", path, hint=hint)


def find_missing_or_run_problem(named: str, path: DataPath = ()) -> Problem | None:
    """Return the problem of a folder that is missing, unreadable, a file, a run or only adapters.

    Return None for another, and for a file of JSON, which flavor auto reads as config.json.
    """
    folder = Path(named)
    try:
        exists = folder.exists()
    except OSError as error:  # a name that is too long, a folder above that may not be entered
        reason = (error.strerror or "").lower()
        return Problem("file", f"cannot read '{named}': {reason}", path)
    if not exists:
        hint = suggest_fetching(named)
        return Problem("file", f"folder not found: '{named}'", path, hint=hint)
    if folder.is_file() and folder.suffix != ".json":
        return build_file_problem(folder, path)
    if not is_huggingface_folder(folder) and has_only_adapters(folder):
        return build_lone_adapters_problem(folder, "file", path)
    if is_huggingface_folder(folder) or not (folder / RESOLVED).is_file():
        return None
    message = f"'{named}' is a run of titanrun, not a Hugging Face folder of a model"
    exported = list_model_folders(folder)
    hint = f"did you mean {exported[0]}?" if exported else suggest_export(folder)
    return Problem("file", message, path, hint=hint)


def build_file_problem(file: Path, path: DataPath) -> Problem:
    """Build the problem of a file in the place of a folder of a model."""
    hint = "name a folder with config.json, weights and tokenizer"
    if is_huggingface_folder(file.parent):
        hint = f"name the folder that holds it: {file.parent}"
    return Problem("file", f"'{file}' is a file, not a folder", path, hint=hint)


def list_model_folders(folder: Path) -> list[str]:
    """Return the folders of models within a folder, none within one of transformers' or a file.

    The parts of a pipeline of diffusers have a config.json each.
    """
    if is_huggingface_folder(folder) or not folder.is_dir() or (folder / PIPELINE_INDEX).is_file():
        return []
    try:
        return sorted(f"'{inner}'" for inner in folder.iterdir() if is_huggingface_folder(inner))
    except OSError:  # not readable
        return []


def suggest_export(run: Path) -> str:
    """Return the command that writes the weights of a run as a Hugging Face folder."""
    return f"{build_export_command(run, get_export_name(run))} makes a folder of it: name that"


def get_export_name(run: Path) -> str:
    """Return the folder that hints write the weights of a run to."""
    return f"{run.absolute().name}-hf"


def build_export_command(run: Path, target: str) -> str:
    """Return the command that writes the weights of a run to a folder, with adapters merged."""
    register_builtins()
    words = ["titanrun", "checkpoint", "export", str(run), target, "--format", "hf"]
    is_merged = names_adapters(read_plain_recipe(run / RESOLVED))
    return shlex.join([*words, "--merge"] if is_merged else words)


def explain_model_folder(problems: Iterable[Problem], named: str | None) -> list[Problem]:
    """Return the problems, with those of the file config.json replaced by that of its folder."""
    found = list(problems)
    if named is None or all(one.path != MODEL_FOLDER or one.code != "file" for one in found):
        return found
    own = find_model_folder_problem(named, MODEL_FOLDER)
    return found if own is None else [own, *(one for one in found if one.path != MODEL_FOLDER)]
