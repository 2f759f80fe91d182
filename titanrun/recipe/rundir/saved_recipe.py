"""What the recipe of a run says about its weights, read as plain data.

Runs of other versions are read too, so that nothing is validated.
"""

from pathlib import Path
from typing import Any

from titanrun.components.converters.config import AdapterConfig, ConverterConfig
from titanrun.components.losses.config import LossConfig
from titanrun.config.problems import ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.registry import load_choices
from titanrun.config.tree import to_plain_data

ADAPTER_OFF = "adapter_off"


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


def names_reward_model(source: dict[str, Any]) -> bool:
    """Return whether the model of a resolved recipe gives scores in place of logits."""
    model = source.get("model")
    return isinstance(model, dict) and model.get("head") == "scalar"


def get_component_name(component: Any) -> str:
    """Return the name of a component as it stands in a resolved recipe, empty if it has none."""
    name = component.get("name") if isinstance(component, dict) else component
    return name if isinstance(name, str) else ""
