"""Code that comes with weights: the classes that config.json names in files beside it. It runs only where the command line said so."""

from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.config.problems import fail
from titanrun.distributed.environment import trusts_remote_code
from titanrun.models.transformers.config import PATH, TransformersConfig

FLAG = "--trust-remote-code"
CLASSES = "auto_map"
# what code of others may raise while it is imported, beside its own exceptions
BROKEN = (
    ImportError,
    OSError,
    SyntaxError,
    AttributeError,
    NameError,
    TypeError,
    ValueError,
    RuntimeError,
)


def remote_class(config: TransformersConfig, written: dict[str, Any], kind: str) -> Any:
    """The class that config.json, of which `written` is the content, names for AutoConfig or AutoModelForCausalLM; None where it names
    none, and where code of others is not to run.

    Raises ProblemsFound where the class cannot be imported.
    """
    classes = written.get(CLASSES)
    reference = classes.get(kind) if isinstance(classes, dict) else None
    if not isinstance(reference, str) or not trusts_remote_code():
        return None
    folder = folder_of(config)
    if "--" in reference or reference.count(".") != 1:
        message = f"config.json: {kind} is '{reference}', and only code in the folder itself is run"
        raise fail(
            "file",
            message,
            path=PATH,
            help="download the file into the folder, and name it there as module.Class",
        )
    if folder is None:
        message = (
            f"config.json: {kind} is '{reference}', and the recipe names no folder with that code"
        )
        raise fail("file", message, path=PATH, help="name the folder in path or in hf_assets_path")
    modules = import_module("transformers.dynamic_module_utils")
    try:
        return modules.get_class_from_dynamic_module(reference, str(folder), local_files_only=True)
    except BROKEN as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise fail(
            "file", f"the code of {reference} in '{folder}' cannot be imported: {said}", path=PATH
        ) from error


def folder_of(config: TransformersConfig) -> Path | None:
    """Where config.json and the code beside it are."""
    named = config.path or config.hf_assets_path
    if named is None:
        return None
    return Path(named).parent if Path(named).is_file() else Path(named)


def advice_on_code(written: dict[str, Any]) -> str:
    """What to do about an architecture that transformers does not have."""
    if written.get(CLASSES):
        return f"its class comes as code with the weights: read that code, then start the command with {FLAG}"
    return "install a version of transformers that has the class"
