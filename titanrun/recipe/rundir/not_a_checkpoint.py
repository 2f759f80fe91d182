"""What a path is that a command takes for a run or a checkpoint, and what to name instead."""

from pathlib import Path

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.read_source import FORMATS

PEFT_CONFIG = "adapter_config.json"
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
        return lone_adapters_error(named)
    message = f"'{named}' is neither a checkpoint nor a run directory with one"
    message += "" if any(named.iterdir()) else ": it is an empty folder"
    return problem_error("checkpoint", message, hint=wanted)


def has_only_adapters(folder: Path) -> bool:
    """Return whether a folder has adapters in the layout of peft, and no model beside them."""
    return (folder / PEFT_CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def lone_adapters_error(named: Path) -> ProblemsFound:
    """Build the problem of a folder of adapters in the layout of peft, without their model."""
    return problem_error(
        "checkpoint",
        f"'{named}' holds adapters without the model that they belong to",
        hint=f"name the run that they come from, or make a checkpoint of them: titanrun "
        f"checkpoint import {named} RECIPE out --from peft",
    )


def advise_for_file(file: Path) -> str | None:
    """Return what to name in place of a file, None if nothing is known of such files."""
    suffix = file.suffix.lower()
    if suffix == ".gguf":
        return "name the run that it was exported from; llama.cpp and Ollama read the file"
    if suffix in FORMATS:
        return f"train the recipe first, then name its run: titanrun train {file}"
    return f"name the folder that holds it: {file.parent}" if suffix in WEIGHT_SUFFIXES else None
