"""Rules about training that starts from random weights, though the recipe names a model."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.config.problems import DataPath
from titanrun.recipe.dump_folder import path_exists
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.resolve_auto import has_weights
from titanrun.recipe.rules.holdout import list_training_sources
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.trainer_kinds import Pretrain

ASSETS: DataPath = ("model", "hf_assets_path")
LOAD: DataPath = ("checkpoint", "initial_load_in_hf")
START: DataPath = ("checkpoint", "initial_load_path")
HINT = "set checkpoint.initial_load_in_hf: true"
CONVERSATIONS_HINT = (
    "write kind: sft or checkpoint.initial_load_in_hf: true, which load its weights; where random "
    "ones are wanted, write checkpoint.initial_load_path: null"
)


@rule("fine-tuning-starts-from-weights")
def fine_tuning_starts_from_weights(run: Recipe) -> Iterator[RuleViolation]:
    """Require weights to load where a named model is fine-tuned.

    Kind pretrain loads nothing by itself: model.hf_assets_path gives it a tokenizer. Adapters would
    then stay on frozen random weights, which is an error if the folder has weights, a preference or
    reward loss would compare replies of a random model, and conversations would be the only text
    that a new model sees. Set checkpoint.initial_load_in_hf to true or
    checkpoint.initial_load_path, or use kind sft, which loads the weights of the folder. Where
    random weights are wanted, write checkpoint.initial_load_path: null. Stages of a recipe load
    those of the stage before.
    """
    assets = run.model.hf_assets_path
    if assets is None or starts_from_weights(run) or not may_have_weights(run, assets):
        return
    message = f"'{assets}' is a model, but training starts from random weights"
    if find_lora_converter(run) is not None:
        yield RuleViolation(
            f"{message}, which stay frozen under adapters",
            (ASSETS, ("converters",), LOAD),
            hint=HINT,
            severity="error" if has_weights(assets) else "warning",
            waived_by_null=START,
        )
    elif run.loss.compares is not None:
        yield RuleViolation(
            message,
            (ASSETS, ("loss",), LOAD),
            hint=HINT,
            severity="warning",
            waived_by_null=START,
        )
    elif run.kind == Pretrain.name and has_only_conversations(run):
        yield RuleViolation(
            message,
            (ASSETS, ("training", "dataset"), LOAD),
            hint=CONVERSATIONS_HINT,
            severity="warning",
            waived_by_null=START,
        )


def has_only_conversations(run: Recipe) -> bool:
    """Return whether a run trains on conversations alone, in every source of a mixture."""
    sources = list_training_sources(run)
    return all(isinstance(dataset, ConversationsConfig) for _, dataset in sources)


def starts_from_weights(run: Recipe) -> bool:
    """Return whether a run loads weights before its first step."""
    return run.checkpoint.initial_load_in_hf or run.checkpoint.initial_load_path is not None


def may_have_weights(run: Recipe, assets: str) -> bool:
    """Return whether model.hf_assets_path has weights, as far as this machine can tell.

    A model that is not here yet is loaded by all kinds but pretrain when it is.
    """
    is_here = not is_storage_path(assets) and path_exists(Path(assets))
    return has_weights(assets) if is_here else run.kind == Pretrain.name
