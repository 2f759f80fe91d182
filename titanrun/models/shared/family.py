"""Where the parts of a model family are: in the folder of the module that defines its config."""

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

from titanrun.config.problems import fail
from titanrun.models.shared.config import ModelConfig


def family_file(family: type[ModelConfig], name: str) -> Path:
    """The path of the file `name` in the family's folder, there or not."""
    return Path(inspect.getfile(family)).with_name(name)


def family_module(family: type[ModelConfig], name: str) -> ModuleType:
    """The module `name` beside the family's config, such as `huggingface`, imported now."""
    place = f"{family.__module__.rpartition('.')[0]}.{name}".removeprefix(".")
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name != place:
            raise
        message = f"the model family {family.model_fields['name'].default} has no {name} module, which this needs"
        raise fail(
            "usage",
            message,
            path=("model", "name"),
            help=f"its plug-in would have it beside the module {family.__module__}",
        ) from None
