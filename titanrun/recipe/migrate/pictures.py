"""What becomes of the keys that torchtitan's flux reads in its own way: its datasets, and how long a row is."""

from typing import Any

from titanrun.recipe.migrate.conversions import lower_case, to
from titanrun.recipe.migrate.keys import Converted, Key, Values

FLUX = "flux"
TOKENS = "tokens of the text and of the picture together; torchtitan's flux does not read it"
LOCAL = "local tar files of pictures and texts are meant"
NO_PICTURES = "torchtitan's flux knows cc12m-wds, cc12m-test and coco-validation only"
# where the tar files are looked for, and where torchtitan has its pictures from
DATASETS = {
    "cc12m-wds": ("data/cc12m/*.tar", "fetch pixparse/cc12m-wds from the Hugging Face Hub"),
    "cc12m-test": ("tests/assets/cc12m_test", "they are in torchtitan's repository"),
    "coco-validation": (
        "data/coco_validation/*.tar",
        "write howard-hou/COCO-Text of the Hugging Face Hub into some",
    ),
}
PIXELS_OF_TOKEN = 16


def dataset(key: Key, value: Any, values: Values) -> Converted:
    """In lower case; those of flux become local tar files."""
    if values.get("model.name") != FLUX:
        return lower_case(key, value, values)
    section = key.path.partition(".")[0]
    if value not in DATASETS:
        return Converted({}, refused=NO_PICTURES)
    place, how = DATASETS[value]
    if values.get(f"{section}.dataset_path"):
        return Converted({f"{section}.dataset.name": "webdataset"}, how=LOCAL)
    return Converted(
        {f"{section}.dataset.name": "webdataset", f"{section}.dataset.path": place},
        how=f"{LOCAL}: {how}",
    )


def row_length(key: Key, value: Any, values: Values) -> Converted:
    """Of flux what a picture and its text take."""
    text, size = values.get("encoder.max_t5_encoding_len"), values.get("training.img_size")
    if values.get("model.name") != FLUX or not isinstance(text, int) or not isinstance(size, int):
        return to(key, value)
    return to(key, text + (size // PIXELS_OF_TOKEN) ** 2, how=TOKENS)


def image_size(key: Key, value: Any, values: Values) -> Converted:
    """The size of the pictures that are trained on, and of those that are held out."""
    held_out = {"validation.dataset.image_size": value} if values.get("validation.enable") else {}
    return Converted({str(key.target): value, **held_out})
