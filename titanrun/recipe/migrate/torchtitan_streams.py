"""Conversion of torchtitan's datasets that are streamed, and of their loader processes."""

import re
from pathlib import Path
from typing import Any

from titanrun.recipe.migrate.key_mapping import ConvertedValue, SourceKey, SourceValues
from titanrun.recipe.migrate.torchtitan_flux import convert_torchtitan_dataset
from titanrun.recipe.migrate.torchtitan_values import convert_to_target

SPLITS = {"c4": "train", "c4_validation": "validation"}
STREAMED_DATASETS = tuple(SPLITS)
C4_REPO, SUBSET = "allenai/c4", "en"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
OTHER_PASSES = (
    "the sequences of torchtitan without loader processes, in the first pass over the data; later "
    "passes of torchtitan shuffle the files"
)
LANES_BY_HAND = (
    "set training.lanes to the number of data-parallel ranks to read torchtitan's sequences; later "
    "passes of torchtitan shuffle the files"
)
OTHER_COMMIT = (
    "torchtitan reads the branch main; titanrun data pin RECIPE --write writes its commit into the "
    "recipe"
)
CLONE_OF_C4 = (
    "the files that torchtitan reads of a clone of allenai/c4; name others if the folder has others"
)
OTHER_ORDER = (
    "in another order than torchtitan's, whatever training.lanes is: it shuffles the records of "
    "a rank"
)
OTHER_SHUFFLE_BUFFER = "records of a lane that are shuffled together, in torchtitan those of a rank"
WHOLE_SHUFFLE = "left out: an index is shuffled as a whole"
NO_SHUFFLE = "left out: nothing is shuffled"
OTHER_WORKER_ORDER = (
    "processes do not change which sequences are read; in torchtitan each process reads other files"
)


def convert_num_workers(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write 0 processes as auto, which is 0 too unless the data is streamed.

    Processes do not change which sequences are read. In torchtitan they do.
    """
    is_training = key.path.startswith("training.")
    how = OTHER_WORKER_ORDER if value and is_training and has_streamed_training(values) else ""
    return convert_to_target(key, value or "auto", how=how)


def convert_stream_order(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep it, and tell that the order of a stream is another."""
    how = OTHER_ORDER if value and has_streamed_training(values) else ""
    return convert_to_target(key, value, how=how)


def convert_shuffle_buffer(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write the number of records that are shuffled together as the window of a stream."""
    if not has_streamed_training(values):
        return ConvertedValue({}, how=WHOLE_SHUFFLE)
    if not values.get("dataloader.shuffle"):
        return ConvertedValue({}, how=NO_SHUFFLE)
    return convert_to_target(key, value, how=OTHER_SHUFFLE_BUFFER)


def has_streamed_training(values: SourceValues) -> bool:
    """Return whether the training data is streamed."""
    return str(values.get("training.dataset")).lower() in STREAMED_DATASETS


def convert_streamed_dataset(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Name the dataset; with a path, that of the Hub or of files, which are streamed as C4 is.

    For training, set training.lanes to the data-parallel ranks: each lane then reads the files of a
    rank of torchtitan.
    """
    converted = convert_torchtitan_dataset(key, value, values)
    dataset = converted.targets.get(str(key.target))
    if dataset not in STREAMED_DATASETS:
        return converted
    section = key.path.partition(".")[0]
    targets = {**converted.targets, **convert_place(section, values)}
    if section != "training":
        return ConvertedValue(targets)
    degrees = [
        values.get(f"parallelism.data_parallel_{kind}_degree") for kind in ("replicate", "shard")
    ]
    numbers = [degree for degree in degrees if isinstance(degree, int) and degree > 0]
    if len(numbers) < len(degrees):
        return ConvertedValue(targets, how=LANES_BY_HAND)
    return ConvertedValue({**targets, "training.lanes": numbers[0] * numbers[1]}, how=OTHER_PASSES)


def convert_place(section: str, values: SourceValues) -> dict[str, Any]:
    """Return the kind of dataset for C4 in another place than the Hub's allenai/c4, else nothing.

    `convert_data_place` writes the place.
    """
    place = values.get(f"{section}.dataset_path")
    if place in (None, "", C4_REPO):
        return {}
    name = "hub" if is_hub_id(str(place)) else "text"
    return {f"{section}.dataset.name": name, f"{section}.dataset.streaming": True}


def convert_data_place(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write where C4 is: a dataset of the Hub, or files. Keep the path of other datasets."""
    section = key.path.partition(".")[0]
    split = SPLITS.get(str(values.get(f"{section}.dataset")).lower())
    if not value:
        return ConvertedValue({})
    if split is None:
        return convert_to_target(key, value)
    if value == C4_REPO:
        return ConvertedValue({}, how=f"left out: it is the dataset of {section}.dataset")
    if not is_hub_id(str(value)):
        files = f"{str(value).rstrip('/')}/{SUBSET}/c4-{split}.*.json.gz"
        return convert_to_target(key, files, how=CLONE_OF_C4)
    chosen = {"repo": value, "subset": SUBSET, "split": split}
    targets = {f"{section}.dataset.{name}": one for name, one in chosen.items()}
    return ConvertedValue(targets, how=OTHER_COMMIT)


def is_hub_id(place: str) -> bool:
    """Return whether the datasets library reads a path from the Hub: it is no folder here."""
    return HUB_ID.fullmatch(place) is not None and not Path(place).exists()
