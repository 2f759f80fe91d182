"""Rules about the files of the weights that a run starts from."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.checkpoints.spec.weight_files import find_weight_faults
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.hub_models import find_repository
from titanrun.recipe.rules.initial_adapters import INITIAL_LOAD
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rundir.checkpoint_lookup import needs_initial_weights


@rule("weight-files-are-whole", level="environment")
def weight_files_are_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Require whole safetensors files in the Hugging Face folder that a run starts from.

    A download that was interrupted leaves a file out, or a part of one. Fetch the folder again. The
    header and the size of each file are compared; the weights are not read. What titanrun download
    wrote is left out: it may hold the tokenizer alone until a run fetches the weights.
    """
    named = run.checkpoint.initial_load_path or run.model.hf_assets_path
    if (
        not run.checkpoint.initial_load_in_hf
        or named is None
        or is_storage_path(named)
        or not is_huggingface_folder(Path(named))
        or find_repository(named) is not None
        or not needs_initial_weights(run)
    ):
        return
    for fault in find_weight_faults(Path(named)):
        yield RuleViolation(
            fault,
            (INITIAL_LOAD, ("model", "hf_assets_path")),
            hint=f"fetch the model again into {named}, or name a folder that is whole",
            code="file",
        )
