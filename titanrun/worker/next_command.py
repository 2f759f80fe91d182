"""The command to type after a run, in the last line of its console."""

import shlex
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.tokenizers.spec.tokenizer_files import load_chat_template_text
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import select_checkpoint
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.training.train_hook import TrainResult

PROMPT = "Once upon a time"
# between two commands in a line
GAP = "     "


def format_next_command(run_dir: Path, outcome: TrainResult) -> str:
    """Return the line `next: titanrun ...` with commands for what a run has written.

    A run that was stopped is resumed. A model with a chat template converses, another continues a
    prompt, and a run without checkpoints on this machine has its metrics only.
    """
    if outcome.state != "finished":
        return format_commands(["resume", str(run_dir)])
    recipe = load_resolved(run_dir / RESOLVED)
    if recipe.kind == "eval":
        return format_commands(["runs", "show", str(run_dir)])
    if not recipe.checkpoint.enable or is_storage_path(recipe.checkpoint.folder):
        return format_commands(["plot", str(run_dir)])
    try:
        checkpoint = select_checkpoint(run_dir)
    except (ProblemsFound, OSError):
        return format_commands(["plot", str(run_dir)])
    merge = ["--merge"] if find_lora_converter(recipe) is not None else []
    export = ["checkpoint", "export", str(run_dir), "out", "--format", "hf", *merge]
    return format_commands(choose_use(run_dir, Path(str(checkpoint)), recipe), export)


def choose_use(run_dir: Path, checkpoint: Path, recipe: Recipe) -> list[str]:
    """Return the command that uses the model."""
    if recipe.model.modality == "images":
        return ["generate", str(run_dir), "--prompt", PROMPT, "-o", "image.png"]
    try:
        load_chat_template_text(checkpoint)
    except ProblemsFound:
        return ["generate", str(run_dir), "--prompt", PROMPT]
    return ["chat", str(run_dir)]


def format_commands(*commands: list[str]) -> str:
    """Format the line with one command, or several to choose from."""
    return "next: " + GAP.join(shlex.join(["titanrun", *words]) for words in commands)
