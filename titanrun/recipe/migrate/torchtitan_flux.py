"""Conversion of keys that torchtitan's flux reads in its own way.

These are its datasets and the sequence length.
"""

from typing import Any

from titanrun.recipe.migrate.key_mapping import ConvertedValue, SourceKey, SourceValues
from titanrun.recipe.migrate.torchtitan_values import convert_to_lower_case, convert_to_target

FLUX = "flux"
TOKENS = "tokens of the text and of the image together; torchtitan's flux does not read it"
LOCAL = "local tar files with images and texts"
UNKNOWN_IMAGE_DATASET = "torchtitan's flux has cc12m-wds, cc12m-test and coco-validation only"
# path of the tar files, and where torchtitan gets its images from
DATASETS = {
    "cc12m-wds": ("data/cc12m/*.tar", "download pixparse/cc12m-wds from the Hugging Face Hub"),
    "cc12m-test": ("tests/assets/cc12m_test", "they are in torchtitan's repository"),
    "coco-validation": (
        "data/coco_validation/*.tar",
        "save howard-hou/COCO-Text of the Hugging Face Hub as tar files",
    ),
}
PIXELS_PER_TOKEN = 16


def convert_torchtitan_dataset(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write it in lower case; map datasets of flux to local tar files."""
    if values.get("model.name") != FLUX:
        return convert_to_lower_case(key, value, values)
    section = key.path.partition(".")[0]
    if value not in DATASETS:
        return ConvertedValue({}, refused=UNKNOWN_IMAGE_DATASET)
    place, how = DATASETS[value]
    if values.get(f"{section}.dataset_path"):
        return ConvertedValue({f"{section}.dataset.name": "webdataset"}, how=LOCAL)
    return ConvertedValue(
        {f"{section}.dataset.name": "webdataset", f"{section}.dataset.path": place},
        how=f"{LOCAL}: {how}",
    )


def convert_seq_len(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep it; for flux set the tokens of an image and its text."""
    text, size = values.get("encoder.max_t5_encoding_len"), values.get("training.img_size")
    if values.get("model.name") != FLUX or not isinstance(text, int) or not isinstance(size, int):
        return convert_to_target(key, value)
    return convert_to_target(key, text + (size // PIXELS_PER_TOKEN) ** 2, how=TOKENS)


def convert_image_size(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the size of training images and of held-out ones."""
    held_out = {"validation.dataset.image_size": value} if values.get("validation.enable") else {}
    return ConvertedValue({str(key.target): value, **held_out})
