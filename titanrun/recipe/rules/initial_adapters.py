"""Rules about adapters in the weights that a run starts from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.converters.config import AdapterConfig, ConverterConfig
from titanrun.components.losses.config import LossConfig
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.registry import load_choices
from titanrun.config.tree import to_plain_data
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rundir.run_files import RESOLVED

INITIAL_LOAD: DataPath = ("checkpoint", "initial_load_path")
ADAPTER_OFF = "adapter_off"


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


def read_plain_recipe(file: Path) -> dict[str, Any]:
    """Return a resolved recipe as plain data, nothing if it is missing or cannot be read."""
    try:
        found = to_plain_data(read_source(str(file))) if file.is_file() else {}
    except ProblemsFound:
        return {}
    return found if isinstance(found, dict) else {}


def names_adapters(source: dict[str, Any]) -> bool:
    """Return whether a resolved recipe has a converter that adds adapters."""
    choices = load_choices(ConverterConfig)
    listed = source.get("converters")
    return any(
        issubclass(choices.get(get_component_name(one), ConverterConfig), AdapterConfig)
        for one in (listed if isinstance(listed, list) else [])
    )


def names_reference(source: dict[str, Any]) -> bool:
    """Return whether a resolved recipe compares its policy with a reference."""
    loss = load_choices(LossConfig).get(get_component_name(source.get("loss")))
    rl = source.get("rl")
    return getattr(loss, "needs_reference", False) or (
        isinstance(rl, dict) and rl.get("reference") == ADAPTER_OFF
    )


def get_component_name(component: Any) -> str:
    """Return the name of a component as it stands in a resolved recipe, empty if it has none."""
    name = component.get("name") if isinstance(component, dict) else component
    return name if isinstance(name, str) else ""
