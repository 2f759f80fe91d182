"""Rules about adapters in the weights that a run starts from."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rundir.checkpoint_lookup import needs_initial_weights
from titanrun.recipe.rundir.peft_folder import build_lone_adapters_problem, has_only_adapters
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_recipe import (
    ADAPTER_OFF,
    names_adapters,
    names_reference,
    read_plain_recipe,
)

INITIAL_LOAD: DataPath = ("checkpoint", "initial_load_path")


@rule("adapters-are-merged-first", level="environment")
def adapters_are_merged_first(run: Recipe) -> Iterator[RuleViolation]:
    """Require merged weights where a run starts from one that trained adapters.

    With a reference, which is the model without adapters, that would be the base model and not the
    one that was trained. Without adapters of its own, the run has no place for them.
    """
    named = run.checkpoint.initial_load_path
    # a checkpoint at an address is read when it is loaded
    if named is not None and not is_storage_path(named):
        conflict = compare_with_source(run, Path(named) / RESOLVED)
        if conflict is not None:
            yield conflict


@rule("adapters-have-a-model", level="environment")
def adapters_have_a_model(run: Recipe) -> Iterator[RuleViolation]:
    """Require more than the adapters of peft in the folder that a run starts from.

    Such a folder has adapters without the model that they belong to. Make a checkpoint of both with
    titanrun checkpoint import, or start from the run that the adapters come from.
    """
    named = run.checkpoint.initial_load_path
    # paths-exist reports the folder of the model
    if named in (None, run.model.hf_assets_path) or is_storage_path(named):
        return
    if has_only_adapters(Path(named)) and needs_initial_weights(run):
        found = build_lone_adapters_problem(Path(named), "file", INITIAL_LOAD)
        yield RuleViolation(found.message, (INITIAL_LOAD,), hint=found.hint, code="file")


def compare_with_source(run: Recipe, resolved: Path) -> RuleViolation | None:
    """Return why a run cannot start from a checkpoint, given the checkpoint's resolved recipe."""
    named, source = run.checkpoint.initial_load_path, read_plain_recipe(resolved)
    message = find_adapter_conflict(
        run,
        f"'{named}'",
        has_adapters=names_adapters(source),
        has_reference=names_reference(source),
    )
    if message is None:
        return None
    hint = (
        f"merge them: titanrun checkpoint export {named} FOLDER --format hf --merge; then set "
        "checkpoint.initial_load_path: FOLDER with initial_load_in_hf: true"
    )
    return RuleViolation(message, (INITIAL_LOAD,), hint=hint)


def find_adapter_conflict(
    run: Recipe, source: str, *, has_adapters: bool, has_reference: bool
) -> str | None:
    """Return why a run cannot start from the weights of another one that trained adapters.

    Args:
        run: The run.
        source: Name of the other one, for the message.
        has_adapters: Whether it trained adapters.
        has_reference: Whether it had a reference, which this run then goes on with.
    """
    if not has_adapters:
        return None
    if find_lora_converter(run) is None:
        return f"{source} has adapters, and this run has none"
    if uses_reference(run) and not has_reference:
        return f"the reference would be the base model of {source}, without its adapters"
    return None


def uses_reference(run: Recipe) -> bool:
    """Return whether the policy without adapters is the reference of a run."""
    return run.loss.needs_reference or (run.rl is not None and run.rl.reference == ADAPTER_OFF)
