"""`titanrun __complete WORD ...`: candidates for the last word, for completion scripts.

Prints one candidate per line. Reads the shipped JSON Schema instead of importing the configs of
recipes, because an answer is needed at each key press.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath

from titanrun.cli.command_syntax import (
    COMMAND_SYNTAX,
    NO_VALUE,
    CommandSyntax,
    OptionValues,
    WordKind,
)
from titanrun.cli.schema_words import (
    get_slot_choice_names,
    iter_path_completions,
    iter_value_completions,
)
from titanrun.recipe.reference import shipped_recipes

SCHEMA_SUFFIX = ".schema.json"
RECIPE_SUFFIXES = (".yaml", ".yml", ".toml")


def run(arguments: list[str]) -> int:
    """Print the candidates for the last word."""
    for candidate in find_candidates(arguments or [""]):
        print(candidate)
    return 0


def find_candidates(words: list[str]) -> list[str]:
    """Return the candidates for the last word, given its typed beginning."""
    *before, current = words
    if not before:
        found: Iterator[str] = iter_candidates("commands", current)
    elif before[0] not in COMMAND_SYNTAX:
        return []
    else:
        found = iter_command_candidates(COMMAND_SYNTAX[before[0]], before[1:], current)
    return list(dict.fromkeys(word for word in found if word.startswith(current)))


def iter_command_candidates(
    syntax: CommandSyntax, before: list[str], current: str
) -> Iterator[str]:
    """Yield candidates after the name of a command."""
    options = dict(syntax.options)
    if before and before[-1] in options and options[before[-1]] != NO_VALUE:
        yield from iter_option_values(options[before[-1]], current)
        return
    if current.startswith("-"):
        yield from (*options, "--quiet", "--verbose", "--help")
        if any("overrides" in kinds for kinds in syntax.positional_kinds):
            yield from (
                f"--{word}"
                for word in iter_candidates("overrides", current.lstrip("-"))
                if "." in word
            )
        return
    position = min(count_positionals(before, options), len(syntax.positional_kinds) - 1)
    for kind in syntax.positional_kinds[position]:
        yield from iter_candidates(kind, current)


def count_positionals(before: list[str], options: Mapping[str, object]) -> int:
    """Count the positional words before the current one.

    Options, their values and overrides are not counted.
    """
    with_value = {name for name, value in options.items() if value != NO_VALUE}
    is_value = [False, *(word in with_value for word in before)]
    return sum(
        not word.startswith("-") and "=" not in word and not follows
        for word, follows in zip(before, is_value, strict=False)
    )


def iter_option_values(value: OptionValues, current: str) -> Iterator[str]:
    """Yield candidates for the value of an option."""
    if isinstance(value, tuple):
        yield from value
    elif value is not None:
        yield from iter_candidates(value, current)


def iter_candidates(kind: WordKind, current: str) -> Iterator[str]:
    """Yield candidates of one kind."""
    finders: dict[WordKind, Callable[[str], Iterator[str]]] = {
        "files": iter_file_candidates,
        "recipes": iter_recipe_candidates,
        "migratable": lambda word: iter_file_candidates(word, (*RECIPE_SUFFIXES, ".json")),
        "shipped": lambda _: (entry.name for entry in shipped_recipes.list_shipped_recipes()),
        "overrides": iter_override_candidates,
        "paths": lambda word: iter_path_completions(word, leaf=""),
        "components": lambda _: (
            f"{slot}:{name}" for slot, names in get_slot_choice_names().items() for name in names
        ),
        "codes": iter_problem_codes,
        "commands": iter_commands,
        "kinds": iter_listable_kinds,
        "plugins": iter_installed_plugins,
        "schemas": lambda _: (
            path.name.removesuffix(SCHEMA_SUFFIX)
            for path in sorted(shipped_recipes.get_recipe_schema_path().parent.glob("*.json"))
        ),
        "checkpoint_commands": lambda _: iter(
            ("ls", "show", "verify", "diff", "rm", "prune", "now", "export", "import")
        ),
        "runs_commands": lambda _: iter(("ls", "show", "diff", "compare", "tag", "rm", "archive")),
        "data_commands": lambda _: iter(
            ("build", "show", "stats", "pin", "teach", "verify", "prune")
        ),
        "shells": lambda _: iter(("bash", "zsh", "fish")),
    }
    return finders[kind](current)


def iter_installed_plugins(current: str) -> Iterator[str]:
    """Yield the installed plug-ins without importing them."""
    from importlib.metadata import entry_points

    return iter(sorted(point.name for point in entry_points(group="titanrun.plugins")))


def iter_file_candidates(
    current: str, suffixes: tuple[str, ...] = RECIPE_SUFFIXES
) -> Iterator[str]:
    """Yield folders, and files with recipe suffixes or the given ones.

    Hidden files are included if a dot is typed.
    """
    head, slash, last = current.rpartition("/")
    folder = Path(head or slash or ".").expanduser()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith(last) and path.name.startswith(".") == last.startswith("."):
            if path.is_dir():
                yield f"{head}{slash}{path.name}/"
            elif path.suffix in suffixes:
                yield f"{head}{slash}{path.name}"


def iter_recipe_candidates(current: str) -> Iterator[str]:
    """Yield files, and the names of shipped recipes once something is typed."""
    yield from iter_file_candidates(current)
    if current:
        for entry in shipped_recipes.list_shipped_recipes():
            yield str(PurePath(entry.name).with_suffix(""))


def iter_override_candidates(current: str) -> Iterator[str]:
    """Yield paths followed by =, and after the = the values that a field names."""
    path, equals, _ = current.partition("=")
    if not equals:
        return iter_path_completions(current, leaf="=")
    return (f"{path}={value}" for value in iter_value_completions(path.rstrip("+-")))


def iter_problem_codes(_: str) -> Iterator[str]:
    """Yield the codes that `explain` knows."""
    from titanrun.recipe.reference.problem_codes import PROBLEM_CODES

    return iter(PROBLEM_CODES)


def iter_commands(_: str) -> Iterator[str]:
    """Yield the commands and the options that replace them."""
    from titanrun.cli.main import COMMANDS

    return iter((*COMMANDS, "--help", "--version"))


def iter_listable_kinds(_: str) -> Iterator[str]:
    """Yield the kinds that `ls` lists."""
    from titanrun.cli.ls import get_listable_kinds

    return iter(get_listable_kinds())
