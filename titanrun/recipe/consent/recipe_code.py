"""Code that runs because a recipe names it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.config.base import ComponentConfig, Config, iter_nested_configs
from titanrun.config.control_characters import escape_line
from titanrun.config.fields import get_code_kind
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.tree import format_path
from titanrun.config.trust import (
    TRUST_FLAG,
    CodeKind,
    NamedCode,
    compute_code_digest,
    compute_folder_digest,
    is_trusted,
    list_code_files,
)

TASK_SUFFIXES = (".py", ".yaml", ".yml")
MAX_TEXT_LENGTH = 400


def find_recipe_code(run: Config, cwd: Path) -> list[NamedCode]:
    """Return the code that a run names, in the order of its settings.

    Args:
        run: the run, or a part of it.
        cwd: folder where it starts, to which relative file names refer.
    """
    return [
        code for path, config in iter_nested_configs(run) for code in iter_code(path, config, cwd)
    ]


def iter_code(path: DataPath, config: Config, cwd: Path) -> Iterator[NamedCode]:
    """Yield the code that the fields of one config name."""
    for name, field in type(config).model_fields.items():
        kind, value = get_code_kind(field), getattr(config, name)
        if kind is not None and value:
            variables = getattr(config, "secret_variables", ())
            code = describe_code(kind, (*path, name), value, cwd, variables)
            if code is not None:
                yield code
    model_code = config.find_model_code() if isinstance(config, ComponentConfig) else None
    if model_code is not None:
        yield NamedCode("model code", (*path, "name"), model_code.text, model_code.digest)


def describe_code(
    kind: CodeKind, path: DataPath, value: Any, cwd: Path, variables: Sequence[str]
) -> NamedCode | None:
    """Describe the code in the value of a field, None if a folder has none.

    `variables` are the secret environment variables that a command gets.
    """
    if kind == "folder":
        folder = cwd / value
        if not has_task_code(folder):
            return None
        digest = compute_folder_digest(kind, folder, TASK_SUFFIXES)
        return NamedCode(kind, path, f"Python code of the tasks in {shorten(value)}", digest)
    words = list(value)
    files = [cwd / word for word in words] if kind == "command" else []
    digest = compute_code_digest(kind, [str(cwd), *words, *variables], files)
    shown = shlex.join(words) if kind == "command" else "; ".join(words)
    shown += f" (gets {', '.join(variables)})" if variables else ""
    return NamedCode(kind, path, shorten(shown), digest)


def has_task_code(folder: Path) -> bool:
    """Return whether a folder of tasks has Python code, which `!function` in a task runs."""
    return any(
        file.suffix == ".py" or b"!function" in file.read_bytes()
        for file in list_code_files(folder, TASK_SUFFIXES)
    )


def shorten(text: str) -> str:
    """Return the text on one line that a terminal shows as it is."""
    shown = escape_line(text)
    return shown if len(shown) <= MAX_TEXT_LENGTH else shown[: MAX_TEXT_LENGTH - 3] + "..."


def build_untrusted_problem(code: NamedCode, hint: str) -> Problem:
    """Build the problem of code without consent."""
    message = f"{format_path(code.path)} runs code that you have not allowed: {code.text}"
    return Problem("usage", message, code.path, hint=hint)


def check_code_is_trusted(run: Config, environment: Mapping[str, str]) -> None:
    """Raise ProblemsFound unless all code that the run needs is allowed.

    Called by workers, whatever started them.
    """
    missing = [
        code
        for code in find_recipe_code(run, Path.cwd())
        if code.is_required and code.kind != "shell" and not is_trusted(code, environment)
    ]
    if missing:
        hint = f"read it, then run the command with {TRUST_FLAG}"
        raise ProblemsFound(build_untrusted_problem(code, hint) for code in missing)
