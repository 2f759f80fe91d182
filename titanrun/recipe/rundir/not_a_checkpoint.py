"""What a path is that a command takes for a run or a checkpoint, and what to name instead."""

from pathlib import Path

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.read_source import FORMATS
from titanrun.recipe.rundir.peft_folder import PEFT_CONFIG, build_lone_adapters_problem

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
NAME_RUN = "name a run or a folder step-N of one"
NAME_RUN_OR_MODEL = "name a run, a folder step-N of one, or a folder with a model's config.json"


def not_a_checkpoint_error(named: Path, *, takes_models: bool) -> ProblemsFound:
    """Build the problem of an existing path that is no run with a checkpoint.

    Args:
        named: the path.
        takes_models: whether the command also takes the folder of a model.
    """
    wanted = NAME_RUN_OR_MODEL if takes_models else NAME_RUN
    if named.is_file():
        message = f"'{named}' is a file, not a run or a checkpoint"
        return problem_error("checkpoint", message, hint=advise_for_file(named) or wanted)
    if (named / PEFT_CONFIG).is_file():
        return ProblemsFound([build_lone_adapters_problem(named, "checkpoint")])
    message = f"'{named}' is neither a checkpoint nor a run directory with one"
    message += "" if any(named.iterdir()) else ": it is an empty folder"
    return problem_error("checkpoint", message, hint=wanted)


def advise_for_file(file: Path) -> str | None:
    """Return what to name in place of a file, None if nothing is known of such files."""
    suffix = file.suffix.lower()
    if suffix == ".gguf":
        return "name the run that it was exported from; llama.cpp and Ollama read the file"
    if suffix in FORMATS:
        return f"train the recipe first, then name its run: titanrun train {file}"
    return f"name the folder that holds it: {file.parent}" if suffix in WEIGHT_SUFFIXES else None
