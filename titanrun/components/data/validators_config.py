"""Validators of texts in a dataset's config: commits, paths, and formats with columns."""

import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from pathlib import PurePath
from string import Formatter
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from titanrun.config.conflict import conflict_error
from titanrun.config.near_path import SINGLE_FILE_SUFFIX, join_alternatives, join_in_braces
from titanrun.config.serialize import to_flow_yaml

MAX_SOURCES_TOLD = 4
"""Sources of a mixture that a hint writes in full."""
OTHER_SETTINGS = "; each source keeps its own layout, columns and packing"
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")


def validate_commit_hash(text: str) -> str:
    """Return the commit if it is a full hash: a branch or a tag may change."""
    if not COMMIT_PATTERN.fullmatch(text):
        context = {
            "help": "titanrun data pin RECIPE --write writes the commit of a branch or a tag; "
            "or copy one with all its 40 digits from the dataset's page on the Hub"
        }
        raise PydanticCustomError("a_commit_of_40_hexadecimal_digits", "is not a commit", context)
    return text


CommitHash: TypeAlias = Annotated[str, AfterValidator(validate_commit_hash)]


def refuse_path_list(value: Any, dataset: str | None) -> Any:
    """Return what is no list of paths. For a list, tell the glob or mixture that reads it.

    Args:
        value: What is written as path.
        dataset: Name of the dataset, None for what cannot be a source of a mixture.
    """
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        return value
    written, pattern = join_in_braces(value), find_common_glob(value)
    if written is not None:
        hint = f"write path: {to_flow_yaml(written)}"
    elif pattern is not None:
        hint = f"write path: {to_flow_yaml(pattern)}, which reads all files that match"
    elif dataset is None:
        hint = "name one file, a folder, or a glob such as data/*.jsonl"
    else:
        hint = suggest_mixture(value, dataset)
    raise PydanticCustomError("string_type", "is a list", {"help": hint})


def suggest_mixture(paths: Sequence[str], dataset: str) -> str:
    """Return a hint for paths that no glob names: a mixture with a source for each."""
    alone = paths[0].endswith(SINGLE_FILE_SUFFIX)
    begin = "" if alone else "name one folder or glob, or "
    return f"{begin}write the dataset as {format_path_mixture(paths, dataset)}{OTHER_SETTINGS}"


def format_path_mixture(paths: Sequence[str], dataset: str) -> str:
    """Return a mixture with a source for each path."""
    return format_mixture([{"name": dataset, "path": path} for path in paths])


def format_mixture(datasets: Sequence[Mapping[str, str]]) -> str:
    """Return a mixture of datasets on one line, abbreviated if they are many."""
    shown = datasets if len(datasets) <= MAX_SOURCES_TOLD else datasets[:1]
    sources = [to_flow_yaml({"dataset": dataset}) for dataset in shown]
    more = "" if len(shown) == len(datasets) else ", ..."
    return f"{{name: mixture, sources: [{', '.join(sources)}{more}]}}"


def find_common_glob(paths: Sequence[str]) -> str | None:
    """Return a narrow glob of files in one folder, None if folders or suffixes differ.

    It may match other files too. There is none of files that a dataset reads alone.
    """
    if len(set(paths)) == 1:
        return paths[0]
    names = [PurePath(path).name for path in paths]
    folders = {path.removesuffix(name) for path, name in zip(paths, names, strict=True)}
    suffixes = {PurePath(name).suffix for name in names}
    if len(folders) > 1 or len(suffixes) > 1 or suffixes <= {"", SINGLE_FILE_SUFFIX}:
        return None
    first = commonprefix(names)  # noqa: RUF071
    rests = [name.removeprefix(first) for name in names]
    last = commonprefix([rest[::-1] for rest in rests])[::-1]  # noqa: RUF071
    middle = join_alternatives([rest.removesuffix(last) for rest in rests])
    if middle == "*":  # what follows a number is no part of its end
        last = last[max(0, last.find(".")) :]
    return f"{folders.pop()}{first}{middle}{last}"


def check_column_format(column_format: str | None) -> None:
    """Check that a format names at least one column, without conversions."""
    if column_format is None:
        return
    try:
        parsed = list(Formatter().parse(column_format))
    except ValueError as error:
        raise conflict_error(
            f"format cannot be read: {str(error).lower()}",
            "format",
            hint="double the braces that are not columns",
        ) from None
    if any(name == "" or spec or conversion for _, name, spec, conversion in parsed) or not any(
        name for _, name, _, _ in parsed
    ):
        raise conflict_error(
            "format must name columns in braces", "format", hint="write it as in '{title}: {body}'"
        )
