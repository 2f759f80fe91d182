"""Field types beyond pydantic's own: numbers, names, paths, `auto`-or-something."""

import re
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from annotated_types import Ge, Gt, Interval, Len
from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, ValidationError, core_schema

from titanrun.config.control_characters import CONTROL_CHARACTER

AUTO: Literal["auto"] = "auto"
# names that a run directory uses
RESERVED_RUN_NAMES = {
    "logs",
    "data",
    "hf",
    "launch",
    "metrics.jsonl",
    "resolved.yaml",
    "resolved.sources.json",
    "run.json",
    "status.json",
    "tags.json",
    "evaluation.json",
    "samples.jsonl",
    "samples",
}
RUN_PATH_HINT = "it must be inside the run directory; set dump_folder to move the whole run"
# bytes of a name on common file systems, and of a path with space for the run directory before it
LONGEST_NAME = 255
LONGEST_PATH = 1024
# leaves space for what follows a prefix
LONGEST_PREFIX = 200
# what ends a word, or quotes, in a shell or in a line of sbatch options
# a folder without what YAML or a shell would have to quote
MOUNT_PATH = re.compile(r"(/[A-Za-z0-9_.+-]+)+")
VARIABLE_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,254}")
SPLIT_WORD = re.compile(r"""[\s'"`\\$;&|<>()#*?!]""")
T = TypeVar("T")

PositiveInt: TypeAlias = Annotated[int, Gt(0)]
NonNegativeInt: TypeAlias = Annotated[int, Ge(0)]
PositiveFloat: TypeAlias = Annotated[float, Gt(0)]
NonNegativeFloat: TypeAlias = Annotated[float, Ge(0)]
Fraction: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
Text: TypeAlias = Annotated[str, Len(1)]


def validate_line(text: str) -> str:
    """Return a text that fits one line of a script or of a terminal: no control characters."""
    if CONTROL_CHARACTER.search(text):
        raise PydanticCustomError("one_line_without_control_characters", "has control characters")
    return text


def validate_word(text: str) -> str:
    """Return a text that is one word for a shell and for programs that split lines into words."""
    if not text or text.startswith("-") or SPLIT_WORD.search(validate_line(text)):
        context = {"help": "it must not begin with a dash or contain blanks or quotes"}
        raise PydanticCustomError("one_word", "is not a single word", context)
    return text


def validate_argument(text: str) -> str:
    """Return a text that a program can get as an argument: everything but NUL."""
    if "\0" in text:
        raise PydanticCustomError("text_without_the_character_nul", "has a NUL character")
    return text


def validate_file_name_prefix(text: str) -> str:
    """Return the beginning of a file name, which stays in its folder."""
    if "/" in validate_line(text) or len(text.encode()) > LONGEST_PREFIX:
        context = {"help": "it must not contain a slash"}
        raise PydanticCustomError("the_beginning_of_a_file_name", "leaves its folder", context)
    return text


def validate_variable_name(text: str) -> str:
    """Return the name of an environment variable."""
    if VARIABLE_NAME.fullmatch(text) is None:
        raise PydanticCustomError("the_name_of_an_environment_variable", "is no name")
    return text


VariableName: TypeAlias = Annotated[str, AfterValidator(validate_variable_name)]
Line: TypeAlias = Annotated[str, Len(1), AfterValidator(validate_line)]
Word: TypeAlias = Annotated[str, Len(1), AfterValidator(validate_word)]
Argument: TypeAlias = Annotated[str, Len(1), AfterValidator(validate_argument)]
FileNamePrefix: TypeAlias = Annotated[str, Len(1), AfterValidator(validate_file_name_prefix)]


def validate_mount_path(text: str) -> str:
    """Validate an absolute folder without `..`."""
    if not MOUNT_PATH.fullmatch(text) or ".." in text.split("/"):
        context = {"help": "write it as /runs"}
        raise PydanticCustomError("an_absolute_folder", "not an absolute folder", context)
    return text


MountPath: TypeAlias = Annotated[str, AfterValidator(validate_mount_path)]


def validate_run_path(text: str) -> str:
    """Return a relative path that stays inside the run directory.

    It must not use a name that the run itself uses.
    """
    parts = PurePath(text).parts
    leaves = (
        PurePath(text).is_absolute() or ".." in parts or CONTROL_CHARACTER.search(text) is not None
    )
    # on some file systems RUN.JSON is run.json
    taken = bool(parts) and (parts[0].startswith(".") or parts[0].casefold() in RESERVED_RUN_NAMES)
    long = len(text.encode()) > LONGEST_PATH or any(
        len(part.encode()) > LONGEST_NAME for part in parts
    )
    if leaves or not parts or taken or long:
        context = {"help": RUN_PATH_HINT}
        raise PydanticCustomError(
            "a_folder_of_its_own_inside_the_run_directory", "leaves the run directory", context
        )
    return text


RunPath: TypeAlias = Annotated[str, AfterValidator(validate_run_path)]
DtypeName: TypeAlias = Literal["float32", "bfloat16"]


class AutoOr:
    """Marker of `X | Literal["auto"]`: one error instead of pydantic's two (one per branch)."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        inner = handler.generate_schema(get_args(source)[0])
        return core_schema.no_info_wrap_validator_function(validate_auto_or, inner)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        inner = handler(schema["schema"])
        return {"anyOf": [{"const": AUTO}, inner]}


def validate_auto_or(value: Any, validate: Any) -> Any:
    """Return `auto` unchanged, else the value as validated by the inner type."""
    if isinstance(value, str) and value == AUTO:
        return AUTO
    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if (
            len(error.errors()) > 1
            or first["loc"]
            or not isinstance(value, str)
            or first["type"].startswith(("str", "unknown_"))
        ):
            raise
        raise PydanticCustomError(
            "or_auto", "{inner}", {"inner": first["type"], "inner_ctx": first.get("ctx", {})}
        ) from None


OrAuto = Annotated[T | Literal["auto"], AutoOr()]
