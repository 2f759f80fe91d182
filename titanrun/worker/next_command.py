"""The command to type after a run, in the last line of its console."""

from pathlib import Path

from titanrun.components.checkpoints.spec.retention import list_best_steps
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.config.base import iter_nested_configs
from titanrun.config.problems import ProblemsFound
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe, find_lora_converter, is_reward_model
from titanrun.recipe.resolving.multi_stage import is_multi_stage_folder
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import (
    get_checkpoints_by_step,
    load_manifests,
    select_checkpoint,
)
from titanrun.recipe.rundir.next_commands import PROMPT, choose_text_command, format_commands
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.training.train_hook import TrainResult


def format_next_command(run_dir: Path, outcome: TrainResult) -> str:
    """Return the line `next: titanrun ...` with commands for what a run has written.

    They name the best checkpoint if the run keeps it and has a newer one, which a run stands for.
    A run that was stopped is resumed. A model with a chat template converses, another continues a
    prompt, one that does neither is exported, and otherwise a run has its metrics only.
    """
    if outcome.state != "finished":
        # all stages go on, not this one alone
        is_stage = is_multi_stage_folder(run_dir.parent)
        return format_commands(["resume", str(run_dir.parent if is_stage else run_dir)])
    recipe = load_resolved(run_dir / RESOLVED)
    if recipe.kind == "eval":
        return format_commands(["runs", "show", str(run_dir)])
    if not recipe.checkpoint.enable or is_storage_path(recipe.checkpoint.folder):
        return format_commands(["plot", str(run_dir)])
    try:
        checkpoint = select_checkpoint(run_dir)
    except (ProblemsFound, OSError):
        return format_commands(["plot", str(run_dir)])
    place = run_dir
    if best := find_kept_best(run_dir, recipe):
        place = checkpoint = best
    commands = []
    if can_be_used(recipe):
        commands.append(choose_use(place, Path(str(checkpoint)), recipe))
    if can_be_exported(recipe):
        merge = ["--merge"] if find_lora_converter(recipe) is not None else []
        out = choose_export_folder(run_dir)
        commands.append(["checkpoint", "export", str(place), out, "--format", "hf", *merge])
    return format_commands(*(commands or [["plot", str(run_dir)]]))


def choose_export_folder(run_dir: Path) -> str:
    """Return a folder for an export that is not there yet, since nothing is overwritten."""
    names = (
        "out",
        f"{run_dir.name}-hf",
        *(f"{run_dir.name}-hf-{count}" for count in range(2, 100)),
    )
    return next((name for name in names if not Path(name).exists()), "NEW_FOLDER")


def find_kept_best(run_dir: Path, recipe: Recipe) -> Path | None:
    """Return the best checkpoint of a run that keeps such, None if it is the newest one."""
    manifests = load_manifests(run_dir) if recipe.checkpoint.keep_best else {}
    best = next(iter(list_best_steps(manifests)), None)
    if best is None or best == max(manifests):
        return None
    return Path(str(get_checkpoints_by_step(run_dir)[best]))


def can_be_used(recipe: Recipe) -> bool:
    """Return whether titanrun generates texts or images with the model."""
    model = recipe.model
    if is_reward_model(recipe):
        return False
    return model.modality == "images" or "text generation" not in model.unsupported_features


def can_be_exported(recipe: Recipe) -> bool:
    """Return whether the model family has weights of Hugging Face; those of plug-ins may not."""
    try:
        load_family_module(type(recipe.model), "huggingface")
    except ProblemsFound:
        return False
    return True


def choose_use(place: Path, checkpoint: Path, recipe: Recipe) -> list[str]:
    """Return the command that uses the model; it names `place`, a run or a checkpoint."""
    if recipe.model.modality == "images":
        return ["generate", str(place), "--prompt", PROMPT, "-o", "image.png"]
    if has_read_texts_alone(recipe):  # its tokenizer may have a chat template all the same
        return ["generate", str(place), "--prompt", PROMPT]
    return choose_text_command(str(place), checkpoint)


def has_read_texts_alone(recipe: Recipe) -> bool:
    """Return whether a model has been trained from random weights, and without conversations."""
    dataset, checkpoint = recipe.training.dataset, recipe.checkpoint
    has_conversations = any(
        isinstance(found, ConversationsConfig) for _, found in iter_nested_configs(dataset)
    )
    path = checkpoint.initial_load_path
    is_new = path in (None, "auto") and not checkpoint.initial_load_in_hf
    return (
        recipe.kind == "pretrain" and is_new and not has_conversations and dataset.compares is None
    )
