"""Remote code: classes that config.json names in files next to it.

It runs only with the consent of the user: see `titanrun.config.trust`.
"""

from importlib import import_module
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.config.trust import TRUST_FLAG, TRUST_VARIABLE, NamedCode, is_trusted
from titanrun.distributed.rank_env import get_environment_variables
from titanrun.models.transformers.config import PATH_FIELD, TransformersConfig

AUTO_MAP_KEY = "auto_map"
# exceptions that the import of remote code may raise, in addition to its own
IMPORT_ERRORS = (
    ImportError,
    OSError,
    SyntaxError,
    AttributeError,
    NameError,
    TypeError,
    ValueError,
    RuntimeError,
)


def find_remote_class(config: TransformersConfig, written: dict[str, Any], kind: str) -> Any:
    """Return the class that config.json names for AutoConfig or AutoModelForCausalLM.

    `written` is the content of config.json. Return None if it names no class, or remote code must
    not run.

    Raises:
        ProblemsFound: if the class cannot be imported.
    """
    classes = written.get(AUTO_MAP_KEY)
    reference = classes.get(kind) if isinstance(classes, dict) else None
    code = config.find_model_code()
    if not isinstance(reference, str) or not allows_model_code(code):
        return None
    folder = config.find_code_folder()
    if "--" in reference or reference.count(".") != 1:
        message = (
            f"config.json: {kind} is '{reference}', but only code in the folder itself can run"
        )
        raise problem_error(
            "file",
            message,
            path=PATH_FIELD,
            hint="download the file into the folder, and set the key to module.Class",
        )
    if folder is None:
        message = (
            f"config.json: {kind} is '{reference}', but the recipe names no folder with that code"
        )
        raise problem_error(
            "file", message, path=PATH_FIELD, hint="name the folder in path or in hf_assets_path"
        )
    modules = import_module("transformers.dynamic_module_utils")
    try:
        return modules.get_class_from_dynamic_module(reference, str(folder), local_files_only=True)
    except IMPORT_ERRORS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise problem_error(
            "file",
            f"cannot import the code of {reference} in '{folder}': {reason}",
            path=PATH_FIELD,
        ) from error


def allows_model_code(code: NamedCode | None) -> bool:
    """Return whether the user allowed this code, or all code where there is none."""
    environment = get_environment_variables()
    if code is None:
        return TRUST_VARIABLE in environment
    return is_trusted(code, environment)


def format_remote_code_hint(written: dict[str, Any]) -> str:
    """Return the hint for an architecture that transformers does not have."""
    if written.get(AUTO_MAP_KEY):
        return (
            f"its class is code that comes with the weights: review that code, then run the "
            f"command with {TRUST_FLAG}"
        )
    return "install a version of transformers that has the class"
