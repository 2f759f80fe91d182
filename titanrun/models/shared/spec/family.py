"""Files and modules of a model family, in the folder of its config module."""

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

from titanrun.config.problems import problem_error
from titanrun.models.shared.config import ModelConfig


def get_family_file(family: type[ModelConfig], name: str) -> Path:
    """Return the path of the file `name` in the family's folder, which may not exist."""
    return Path(inspect.getfile(family)).with_name(name)


def load_family_module(family: type[ModelConfig], name: str) -> ModuleType:
    """Import the module `name` from the family's folder, such as `huggingface`.

    Raises:
        ProblemsFound: if the family has no such module.
    """
    module_name = f"{family.__module__.rpartition('.')[0]}.{name}".removeprefix(".")
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        message = (
            f"model {family.model_fields['name'].default} has no {name} module, which is "
            f"required here"
        )
        raise problem_error(
            "usage",
            message,
            path=("model", "name"),
            hint=f"its plug-in must define it next to the module {family.__module__}",
        ) from None
