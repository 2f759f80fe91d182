"""Rules about the scripts that commands of a recipe run."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from titanrun.config.base import iter_nested_configs
from titanrun.config.compose import is_absent
from titanrun.config.fields import get_code_kind
from titanrun.config.near_path import suggest_near_path
from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule

INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z)?sh")
"""Programs whose first argument, after their options, is a script."""
# options of interpreters that take the code, or the module, in place of a script
WITHOUT_SCRIPT = ("-c", "-m")
SCRIPT_SUFFIXES = (".py", ".sh")


@rule("command-scripts-exist", level="environment")
def command_scripts_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require the scripts that commands run to exist.

    Relative names are looked up in the folder where titanrun is started, as the programs are
    started there. Commands that run on other machines, and scripts behind programs other than
    Python and shells, are not checked.
    """
    if run.launch.is_submitted or (run.rl is not None and run.rl.fleet.carrier != "local"):
        return
    for path, words in iter_recipe_commands(run):
        index = find_script_index(words)
        if index is not None and is_absent(words[index]):
            yield RuleViolation(
                f"file not found: '{words[index]}'",
                ((*path, index), path),
                hint=suggest_near_path(words[index]) or "name a script that exists",
                code="file",
            )


def iter_recipe_commands(run: Recipe) -> Iterator[tuple[DataPath, Sequence[str]]]:
    """Yield the commands of a recipe, each with its path."""
    for path, config in iter_nested_configs(run):
        for name, field in type(config).model_fields.items():
            if get_code_kind(field) == "command" and getattr(config, name):
                yield (*path, name), getattr(config, name)


def find_script_index(words: Sequence[str]) -> int | None:
    """Return the index of the script among the words of a command, None if it runs no script."""
    program = words[0]
    if not INTERPRETER.fullmatch(Path(program).name):
        # a name without a folder is looked up in PATH
        return 0 if "/" in program and program.endswith(SCRIPT_SUFFIXES) else None
    for index, word in enumerate(words[1:], 1):
        if word in WITHOUT_SCRIPT:
            return None
        if not word.startswith("-"):
            return index if word.endswith(SCRIPT_SUFFIXES) else None
    return None
