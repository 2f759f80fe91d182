"""Keys of axolotl's losses of preferences and their migration."""

from typing import Any

from titanrun.recipe.migrate.axolotl_data import PAIR_LOSSES
from titanrun.recipe.migrate.axolotl_model import is_native_family
from titanrun.recipe.migrate.key_mapping import (
    ConvertedValue,
    SourceKey,
    SourceValues,
    move_key,
    reject_key,
)

WITH_BETA = ("dpo", "ipo", "simpo")
# trl's values of simpo, which differ from titanrun's, with the keys that set others
SIMPO_DEFAULTS = {
    "loss.beta": (("rl_beta", "dpo_beta"), 0.1),
    "loss.gamma": (("simpo_gamma",), 0.5),
    "loss.nll_weight": (("cpo_alpha",), 1.0),
}


def convert_axolotl_loss(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map losses of pairs. Defaults of simpo, which are trl's, are written out."""
    if value in (None, ""):
        return ConvertedValue({})
    if value == "kto":
        return ConvertedValue(
            {}, refused="set loss: kto and training.dataset: {name: labelled, path: ...} by hand"
        )
    if value not in PAIR_LOSSES:
        return ConvertedValue(
            {},
            refused="this is no loss of preferences; titanrun's reinforcement learning has its own "
            "section rl",
        )
    targets: dict[str, Any] = {"loss.name": value}
    if value == "simpo":
        unset = {
            target: default
            for target, (keys, default) in SIMPO_DEFAULTS.items()
            if all(values.get(key) is None for key in keys)
        }
        targets |= unset
    if is_native_family(values):
        targets["model.attention.mask"] = "block_causal"
    return ConvertedValue(targets)


def make_loss_conversion(field: str, *losses: str) -> Any:
    """Return a conversion to a field that these losses have."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the loss."""
        return ConvertedValue(
            {f"loss.{field}": value} if values.get("rl") in losses and value is not None else {}
        )

    return convert


def convert_dpo_loss_type(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Accept sigmoid only."""
    kinds = [value] if isinstance(value, str) else value
    return ConvertedValue(
        {}, refused="" if kinds in (None, ["sigmoid"]) else "dpo supports the paper's sigmoid only"
    )


LOSS_KEYS = (
    move_key("rl", None, "loss.name", convert=convert_axolotl_loss),
    move_key("rl_beta", None, "loss.beta", convert=make_loss_conversion("beta", *WITH_BETA)),
    move_key("dpo_beta", None, "loss.beta", convert=make_loss_conversion("beta", *WITH_BETA)),
    move_key("orpo_alpha", None, "loss.beta", convert=make_loss_conversion("beta", "orpo")),
    move_key("simpo_gamma", None, "loss.gamma", convert=make_loss_conversion("gamma", "simpo")),
    move_key(
        "cpo_alpha",
        None,
        "loss.nll_weight",
        convert=make_loss_conversion("nll_weight", "simpo"),
    ),
    move_key(
        "dpo_label_smoothing",
        None,
        "loss.label_smoothing",
        convert=make_loss_conversion("label_smoothing", "dpo"),
    ),
    reject_key("dpo_loss_type", None, "", convert=convert_dpo_loss_type),
)
