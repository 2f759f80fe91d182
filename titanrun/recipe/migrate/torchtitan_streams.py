"""Conversion of torchtitan's datasets that are streamed, and of their loader processes."""

from typing import Any

from titanrun.recipe.migrate.key_mapping import ConvertedValue, SourceKey, SourceValues
from titanrun.recipe.migrate.torchtitan_flux import convert_torchtitan_dataset
from titanrun.recipe.migrate.torchtitan_values import convert_to_target

STREAMED_DATASETS = ("c4", "c4_validation")
OTHER_PASSES = (
    "the sequences of torchtitan without loader processes, in the first pass over the data; later "
    "passes of torchtitan shuffle the files"
)
LANES_BY_HAND = (
    "set training.lanes to the number of data-parallel ranks to read torchtitan's sequences; later "
    "passes of torchtitan shuffle the files"
)
OTHER_WORKER_ORDER = (
    "processes do not change which sequences are read; in torchtitan each process reads other files"
)


def convert_num_workers(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write 0 processes as auto, which is 0 too unless the data is streamed.

    Processes do not change which sequences are read. In torchtitan they do.
    """
    is_training = key.path.startswith("training.")
    streams = is_training and str(values.get("training.dataset")).lower() in STREAMED_DATASETS
    how = OTHER_WORKER_ORDER if value and streams else ""
    return convert_to_target(key, value or "auto", how=how)


def convert_streamed_dataset(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set training.lanes to the data-parallel ranks if the dataset is streamed.

    Each lane then reads the files of a rank of torchtitan.
    """
    converted = convert_torchtitan_dataset(key, value, values)
    if converted.targets.get(str(key.target)) not in STREAMED_DATASETS:
        return converted
    degrees = [
        values.get(f"parallelism.data_parallel_{kind}_degree") for kind in ("replicate", "shard")
    ]
    numbers = [degree for degree in degrees if isinstance(degree, int) and degree > 0]
    if len(numbers) < len(degrees):
        return ConvertedValue(converted.targets, how=LANES_BY_HAND)
    lanes = numbers[0] * numbers[1]
    return ConvertedValue({**converted.targets, "training.lanes": lanes}, how=OTHER_PASSES)
