"""Keys of axolotl and LLaMA-Factory about when to validate and to save."""

from typing import Any

from titanrun.recipe.migrate.axolotl_data import convert_test_datasets
from titanrun.recipe.migrate.axolotl_values import convert_step_interval
from titanrun.recipe.migrate.key_mapping import (
    ConvertedValue,
    SourceKey,
    SourceValues,
    leave_key,
    move_key,
)
from titanrun.recipe.migrate.llamafactory_data import convert_evaluation_dataset

NOTHING_HELD_OUT = "left out: nothing is held out"
DIVIDED = "{}: the steps of an epoch, which depend on the data, divided by this number"
FREQ = "validation.freq, in steps"
INTERVAL = "checkpoint.interval, in steps or time"
PACKING = "validation.dataset, with its packing: data that are held out are packed as the others"
BEST = "by the held-out loss; commands after the run take that checkpoint"
HELD_OUT_DATA = ("val_set_size", "test_datasets", "val_size", "eval_dataset")


def has_held_out_data(values: SourceValues) -> bool:
    """Return whether a configuration holds out records, or names held-out files."""
    return any(values.get(key) for key in HELD_OUT_DATA)


def convert_evaluation_number(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep a number of a validation where records are held out."""
    if value is None:
        return ConvertedValue({})
    if not has_held_out_data(values):
        return ConvertedValue({}, how=NOTHING_HELD_OUT)
    return convert_step_interval(key, value, values)


def convert_evaluations_per_epoch(_: SourceKey, __: Any, values: SourceValues) -> ConvertedValue:
    """Leave it to the user where records are held out."""
    return ConvertedValue({}, how="" if has_held_out_data(values) else NOTHING_HELD_OUT)


def convert_evaluation_strategy(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept steps; leave epochs to the user where records are held out."""
    if not has_held_out_data(values):
        return ConvertedValue({}, how=NOTHING_HELD_OUT)
    return ConvertedValue({}, how="left out: validation.freq is in steps" * (value == "steps"))


def convert_save_strategy(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Accept steps; leave others to the user."""
    return ConvertedValue({}, how="left out: checkpoint.interval is in steps" * (value == "steps"))


def convert_evaluation_packing(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept the packing of the data to train on, which is that of what is held out."""
    if not has_held_out_data(values):
        return ConvertedValue({}, how=NOTHING_HELD_OUT)
    is_same = bool(value) == bool(values.get("sample_packing"))
    return ConvertedValue({}, how="left out: packed as the data to train on" * is_same)


def convert_best_model(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Keep the checkpoint with the lowest held-out loss."""
    return ConvertedValue({"checkpoint.keep_best": 1} if value else {}, how=BEST if value else "")


STRATEGY_KEYS = (
    leave_key("eval_strategy", None, FREQ, convert=convert_evaluation_strategy),
    leave_key("evaluation_strategy", None, FREQ, convert=convert_evaluation_strategy),
    leave_key("save_strategy", None, INTERVAL, convert=convert_save_strategy),
    move_key("load_best_model_at_end", None, "checkpoint.keep_best", convert=convert_best_model),
)
AXOLOTL_EVALUATION_KEYS = (
    *STRATEGY_KEYS,
    move_key("test_datasets", None, "validation.dataset", convert=convert_test_datasets),
    move_key("eval_steps", None, "validation.freq", convert=convert_evaluation_number),
    move_key(
        "eval_batch_size", None, "validation.local_batch_size", convert=convert_evaluation_number
    ),
    move_key("eval_sequence_len", None, "validation.seq_len", convert=convert_evaluation_number),
    leave_key(
        "evals_per_epoch",
        None,
        DIVIDED.format("validation.freq"),
        convert=convert_evaluations_per_epoch,
    ),
    move_key("save_steps", None, "checkpoint.interval", convert=convert_step_interval),
    move_key(
        "save_first_step",
        None,
        "checkpoint.enable_first_step_checkpoint",
        convert=convert_step_interval,
    ),
    leave_key("saves_per_epoch", None, DIVIDED.format("checkpoint.interval")),
    leave_key("eval_sample_packing", None, PACKING, convert=convert_evaluation_packing),
)
LLAMAFACTORY_EVALUATION_KEYS = (
    *STRATEGY_KEYS,
    move_key("eval_dataset", None, "validation.dataset", convert=convert_evaluation_dataset),
    move_key("eval_steps", None, "validation.freq", convert=convert_evaluation_number),
    move_key(
        "per_device_eval_batch_size",
        None,
        "validation.local_batch_size",
        convert=convert_evaluation_number,
    ),
)
