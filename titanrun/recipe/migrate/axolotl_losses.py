"""Keys of axolotl's losses of preferences and their migration."""

from typing import Any

from titanrun.config.suggest import format_word_list
from titanrun.recipe.migrate.axolotl_data import KTO, PAIR_LOSSES
from titanrun.recipe.migrate.axolotl_model import is_native_family
from titanrun.recipe.migrate.key_mapping import (
    ConvertedValue,
    SourceKey,
    SourceValues,
    move_key,
)

WITH_BETA = ("dpo", "ipo", "simpo", "kto")
DPO_LOSSES: dict[str, dict[str, str]] = {
    "sigmoid": {"loss.name": "dpo"},
    "ipo": {"loss.name": "ipo"},
    **{
        variant: {"loss.name": "dpo", "loss.variant": variant}
        for variant in ("hinge", "robust", "apo_zero", "sigmoid_norm")
    },
}
"""Values of trl's loss_type for DPO, and the loss here."""
TRL_LOSSES: dict[str, dict[str, str]] = {
    **DPO_LOSSES,
    "simpo": {"loss.name": "simpo"},
    "kto": {"loss.name": "kto"},
    "apo_zero_unpaired": {"loss.name": "kto", "loss.variant": "apo_zero"},
}
"""Values of loss_type in files of trl: for DPO, CPO and KTO."""
SMOOTHED = ("sigmoid", "robust")
"""Those that label_smoothing changes."""
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
    if value not in (*PAIR_LOSSES, KTO):
        return ConvertedValue(
            {},
            refused="this is no loss of preferences; titanrun's reinforcement learning has its own "
            "section rl",
        )
    targets: dict[str, Any] = {"loss.name": value}
    if value == "dpo":
        targets = dict(DPO_LOSSES.get(get_dpo_loss(values) or "", targets))
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


def get_dpo_loss(values: SourceValues) -> str | None:
    """Return the single loss of DPO, None if several are added or the value is of another type."""
    written = values.get("dpo_loss_type") or "sigmoid"
    kinds = written if isinstance(written, list) else [written]
    return str(kinds[0]) if len(kinds) == 1 else None


def convert_dpo_loss_type(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Refuse losses that titanrun does not have; `rl` maps the others."""
    kind = get_dpo_loss(values)
    if value is None or values.get("rl") != "dpo":
        return ConvertedValue({})
    if kind is None:
        return ConvertedValue({}, refused="no sum of several losses; choose one for loss.variant")
    if kind not in DPO_LOSSES:
        known = format_word_list(DPO_LOSSES, conjunction="and")
        return ConvertedValue({}, refused=f"no loss {kind} of pairs: titanrun has {known}")
    return ConvertedValue(DPO_LOSSES[kind])


def convert_label_smoothing(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set label_smoothing of the losses that read it."""
    is_read = values.get("rl") == "dpo" and get_dpo_loss(values) in SMOOTHED
    return ConvertedValue({"loss.label_smoothing": value} if is_read and value is not None else {})


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
        convert=convert_label_smoothing,
    ),
    move_key("dpo_loss_type", None, "loss.variant", convert=convert_dpo_loss_type),
    *(
        move_key(f"kto_{weight}", None, f"loss.{weight}", convert=make_loss_conversion(weight, KTO))
        for weight in ("desirable_weight", "undesirable_weight")
    ),
)
