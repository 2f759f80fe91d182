"""Hints for keys of TRL and LLaMA-Factory that choose a loss."""

from collections.abc import Mapping
from typing import Any

from titanrun.components.losses.config import LossConfig
from titanrun.config.registry import load_choices
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list, remove_slot_word
from titanrun.config.type_introspection import find_config_class, find_value
from titanrun.recipe.migrate.axolotl_losses import TRL_LOSSES
from titanrun.recipe.recipe import Recipe

LOSS, NAME, BETA, VARIANT = "loss", "name", "beta", "variant"
AUTO = "auto"
POLICY_LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo")
"""Values of loss_type for GRPO in TRL."""
TOKEN_LOSSES = {"nll": "cross_entropy", "chunked_nll": "chunked_cross_entropy"}
"""Values of loss_type for SFT in TRL, and the loss here."""


def describe_loss_key(value: Any, losses: Mapping[str, Mapping[str, str]], data: Any) -> str:
    """Return what to write for a loss of another program beside that of a recipe.

    Return an empty text if there is no such loss.

    Args:
        value: name of the loss, or a list with one.
        losses: names in that program, with the settings here.
        data: content of the recipe.
    """
    kind, choices = get_single_kind(value), load_choices(LossConfig)
    written = find_value(data, (LOSS,))
    current = written if isinstance(written, dict) else {NAME: written}
    own = remove_slot_word(str(current.get(NAME) or AUTO), LOSS)
    settings = losses.get(kind, {"loss.name": kind} if kind in choices else None)
    if settings is None or own not in choices:
        return ""
    fields: dict[str, Any] = {path.removeprefix("loss."): one for path, one in settings.items()}
    name = fields[NAME]
    if name != own:
        kept = {BETA: current[BETA]} if BETA in current and has_field(name, BETA) else {}
        loss = to_flow_yaml({NAME: name, **kept, **fields} if kept or len(fields) > 1 else name)
        return f"write loss: {loss}{format_missing_dataset(name, data)}"
    defaults = {key: field.default for key, field in choices[name].model_fields.items()}
    if VARIANT in defaults:
        fields.setdefault(VARIANT, defaults[VARIANT])
    others = {key: one for key, one in fields.items() if current.get(key, defaults[key]) != one}
    if others:
        return f"write {' and '.join(f'loss.{key}: {one}' for key, one in others.items())}"
    is_default = all(defaults[key] == one for key, one in fields.items())
    if VARIANT in fields:
        what = f"{fields[VARIANT]} is the {'default ' * is_default}loss.variant"
        return f"remove it: {what} of loss {name}"
    return f"remove it: it is what loss {name} computes"


def has_field(name: str, key: str) -> bool:
    """Return whether a loss has a setting."""
    return key in load_choices(LossConfig)[name].model_fields


def format_missing_dataset(name: str, data: Any) -> str:
    """Return the end of a hint that names the dataset of a loss, empty if the recipe has one."""
    compares = getattr(load_choices(LossConfig)[name], "compares", None)
    dataset = find_config_class(Recipe, data, ("training", "dataset"))
    if compares is None or getattr(dataset, "compares", None) == compares:
        return ""
    kind = "labelled" if compares == "labels" else "preference"
    return f", and training.dataset: {{name: {kind}, path: FILE}}"


def get_single_kind(value: Any) -> str:
    """Return the name of a loss, also in a list of one."""
    return str(value[0] if isinstance(value, list) and len(value) == 1 else value)


def describe_trl_loss(value: Any) -> str:
    """Return the loss of a value of TRL's loss_type, also in a list, or that there is none."""
    kind = get_single_kind(value)
    if kind in POLICY_LOSSES:
        return "remove it: write kind: rl and rl.algorithm, see titanrun ls algorithms"
    written = TOKEN_LOSSES.get(kind)
    return describe_loss(value, TRL_LOSSES) if written is None else f"write loss: {written}"


def describe_loss(value: Any, losses: Mapping[str, Mapping[str, str]]) -> str:
    """Return the loss of preferences that another program calls so, with its dataset.

    Args:
        value: name of the loss, or a list with one.
        losses: names in that program, with the settings here.
    """
    kinds = value if isinstance(value, list) else [value]
    known = format_word_list(losses, conjunction="and")
    if len(kinds) != 1:
        return f"there is no sum of several losses here: choose one of {known}"
    settings = losses.get(str(kinds[0]))
    if settings is None:
        return f"there is no loss '{kinds[0]}' here, only {known}"
    fields = {target.removeprefix("loss."): one for target, one in settings.items()}
    name = fields["name"]
    data = "labelled" if name == "kto" else "preference"
    written = to_flow_yaml(fields if len(fields) > 1 else name)
    return f"write loss: {written}, and training.dataset: {{name: {data}, path: FILE}}"
