"""`titanrun __complete WORD ...`: the words that may stand where the last one is typed, one a line, for completion scripts.

Reads the JSON Schema that ships instead of importing the recipe's configs: an answer after each key press has to be quick.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from titanrun.cli.schema_words import paths, slot_names, values
from titanrun.recipe import catalogue

Kind = Literal[
    "files",
    "migratable",
    "shipped",
    "overrides",
    "paths",
    "codes",
    "components",
    "commands",
    "kinds",
    "schemas",
    "plugins",
    "shells",
    "checkpoint_commands",
    "runs_commands",
    "data_commands",
]
FORMATS = ("text", "json", "github", "sarif")
SCHEMA_SUFFIX = ".schema.json"
RECIPE_SUFFIXES = (".yaml", ".yml", ".toml")
Values: TypeAlias = tuple[str, ...] | Kind | None
FLAG: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Takes:
    """What a command takes: kinds of words by position, the last for all that follow, and options with their values.

    An option's value is one of a few words, a kind, or anything (None); a flag has none.
    """

    words: tuple[tuple[Kind, ...], ...] = ()
    options: Mapping[str, Values] = field(default_factory=dict)


def flags(*names: str) -> dict[str, Values]:
    """Options without a value."""
    return dict.fromkeys(names, FLAG)


TRUST = flags("--trust-remote-code")
REPORTING: dict[str, Values] = {"--log-format": ("text", "json"), "--notify": None}
COMMAND_LINES: dict[str, Takes] = {
    "train": Takes((("files",), ("overrides",)), {"--nproc": None, **TRUST, **REPORTING}),
    "launch": Takes(
        (("files",), ("overrides",)), {**flags("--dry-run", "--no-follow"), **REPORTING}
    ),
    "resume": Takes((("files",), ("overrides",)), {**TRUST, **REPORTING}),
    "fork": Takes((("files",), ("overrides",)), {**TRUST, **REPORTING}),
    "generate": Takes(
        (("files",), ()),
        {
            "--prompt": None,
            "--max-new-tokens": None,
            "--temperature": None,
            "--top-k": None,
            "--top-p": None,
            "--seed": None,
            "--nproc": None,
            "--stop": None,
            "--output": "files",
            "--steps": None,
            "--guidance": None,
            "--size": None,
            **flags("--ignore-eos", "--add-bos", "--chat", "--json"),
        },
    ),
    "eval": Takes((("files",), ("overrides",)), flags("--json")),
    "download": Takes(
        ((),),
        {"--revision": None, "--only": ("tokenizer", "config", "weights"), "--output": "files"},
    ),
    "reproduce": Takes(
        (("files",), ()), {"--steps": None, "--out": "files", "--tolerance": None, **TRUST}
    ),
    "checkpoint": Takes((("checkpoint_commands",), ("files",), ("files",), ("overrides",))),
    "data": Takes((("data_commands",), ("files",), ("overrides",))),
    "runs": Takes((("runs_commands",), ("files",))),
    "bundle": Takes((("files",), ()), {"--output": "files"}),
    "sweep": Takes(
        (("files",), ("overrides",)),
        {
            **flags("--list", "--launch", "--dry-run", "--table"),
            "--format": ("text", "csv", "json"),
        },
    ),
    "plot": Takes(
        (("files",),),
        {
            "--metric": ("loss", "grad_norm", "lr", "tps", "memory_gib", "validation/loss"),
            "--x": ("step", "tokens", "time"),
            "--smooth": None,
            "--log": ("x", "y"),
            **flags("--seeds"),
            "--out": "files",
        },
    ),
    "report": Takes((("files",), ()), {"--output": "files"}),
    "plan": Takes(
        (("files",), ("overrides",)),
        {
            "--world-size": None,
            "--device": ("a100", "a100-40", "b200", "h100", "h200", "mi300x"),
            **TRUST,
            **flags("--json"),
        },
    ),
    "validate": Takes(
        (("files",), ("files", "overrides")),
        {
            "--level": ("syntax", "schema", "rules", "environment", "build"),
            "--format": FORMATS,
            "--world-size": None,
            **TRUST,
            **flags("--strict", "--json", "--fix"),
        },
    ),
    "diff-config": Takes(
        (("files",), ("files",), ("overrides",)),
        {"--format": ("text", "json"), **flags("--written", "--effective", "--json")},
    ),
    "show": Takes(
        (("files",), ("paths",)),
        {
            **TRUST,
            **flags("--sources", "--minimal", "--model", "--resolved", "--json"),
            "--plot": ("lr_scheduler",),
            "--out": "files",
        },
    ),
    "explain": Takes(
        (("paths", "components", "codes"),), {**flags("--all", "--json"), "--plugins": "plugins"}
    ),
    "ls": Takes(
        (("kinds",), ()),
        {
            **dict.fromkeys(f"--{key}" for key in catalogue.HEADER_KEYS),
            **flags("--json"),
            "--plugins": "plugins",
        },
    ),
    "cat": Takes((("shipped",), ())),
    "cp": Takes((("shipped",), ("files",), ())),
    "init": Takes(((),), {"--model": None, "--output": "files"}),
    "migrate": Takes(
        (("migratable",), ()),
        {
            "--from": ("torchtitan", "torchtune", "axolotl"),
            "--output": "files",
            **flags("--check", "--write"),
        },
    ),
    "doctor": Takes(((),), flags("--no-training", "--json")),
    "completion": Takes((("shells",), ())),
    "schema": Takes((("schemas",), ()), {"--write": "files", "--plugins": "plugins"}),
}


def run(arguments: list[str]) -> int:
    """Print the candidates for the last word."""
    for candidate in candidates(arguments or [""]):
        print(candidate)
    return 0


def candidates(words: list[str]) -> list[str]:
    """What may stand in the place of the last word, which is typed so far as it is."""
    *before, current = words
    if not before:
        found: Iterator[str] = of_kind("commands", current)
    elif before[0] not in COMMAND_LINES:
        return []
    else:
        found = after_command(COMMAND_LINES[before[0]], before[1:], current)
    return list(dict.fromkeys(word for word in found if word.startswith(current)))


def after_command(takes: Takes, before: list[str], current: str) -> Iterator[str]:
    """Candidates behind a command's name."""
    options = dict(takes.options)
    if before and before[-1] in options and options[before[-1]] != FLAG:
        yield from values_of_option(options[before[-1]], current)
        return
    if current.startswith("-"):
        yield from (*options, "--quiet", "--verbose", "--help")
        if any("overrides" in kinds for kinds in takes.words):
            yield from (
                f"--{word}" for word in of_kind("overrides", current.lstrip("-")) if "." in word
            )
        return
    position = min(count_words(before, options), len(takes.words) - 1)
    for kind in takes.words[position]:
        yield from of_kind(kind, current)


def count_words(before: list[str], options: Mapping[str, object]) -> int:
    """How many words that are no options, values of options or overrides stand before the current one."""
    with_value = {name for name, value in options.items() if value != FLAG}
    is_value = [False, *(word in with_value for word in before)]
    return sum(
        not word.startswith("-") and "=" not in word and not follows
        for word, follows in zip(before, is_value, strict=False)
    )


def values_of_option(value: Values, current: str) -> Iterator[str]:
    """Candidates behind an option."""
    if isinstance(value, tuple):
        yield from value
    elif value is not None:
        yield from of_kind(value, current)


def of_kind(kind: Kind, current: str) -> Iterator[str]:
    """Candidates of one kind."""
    finders: dict[Kind, Callable[[str], Iterator[str]]] = {
        "files": files,
        "migratable": lambda word: files(word, (*RECIPE_SUFFIXES, ".json")),
        "shipped": lambda _: (entry.name for entry in catalogue.shipped()),
        "overrides": overrides,
        "paths": lambda word: paths(word, leaf=""),
        "components": lambda _: (
            f"{slot}:{name}" for slot, names in slot_names().items() for name in names
        ),
        "codes": problem_codes,
        "commands": commands,
        "kinds": listed_kinds,
        "plugins": installed_plugins,
        "schemas": lambda _: (
            path.name.removesuffix(SCHEMA_SUFFIX)
            for path in sorted(catalogue.schema_file().parent.glob("*.json"))
        ),
        "checkpoint_commands": lambda _: iter(
            ("ls", "show", "verify", "diff", "prune", "save", "export", "import")
        ),
        "runs_commands": lambda _: iter(("ls", "show", "diff", "compare", "tag", "rm", "archive")),
        "data_commands": lambda _: iter(("build", "show", "stats", "verify", "prune")),
        "shells": lambda _: iter(("bash", "zsh", "fish")),
    }
    return finders[kind](current)


def installed_plugins(current: str) -> Iterator[str]:
    """The plug-ins that are installed; none is imported."""
    from importlib.metadata import entry_points

    return iter(sorted(point.name for point in entry_points(group="titanrun.plugins")))


def files(current: str, suffixes: tuple[str, ...] = RECIPE_SUFFIXES) -> Iterator[str]:
    """Folders, and files that may be recipes, or have other suffixes that are asked for; hidden ones when a dot is typed."""
    head, slash, last = current.rpartition("/")
    folder = Path(head or slash or ".").expanduser()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith(last) and path.name.startswith(".") == last.startswith("."):
            if path.is_dir():
                yield f"{head}{slash}{path.name}/"
            elif path.suffix in suffixes:
                yield f"{head}{slash}{path.name}"


def overrides(current: str) -> Iterator[str]:
    """Paths with = behind them, and behind the = the values that a field names."""
    path, equals, _ = current.partition("=")
    if not equals:
        return paths(current, leaf="=")
    return (f"{path}={value}" for value in values(path.rstrip("+-")))


def problem_codes(_: str) -> Iterator[str]:
    """The codes that `explain` knows."""
    from titanrun.recipe.codes import MEANINGS

    return iter(MEANINGS)


def commands(_: str) -> Iterator[str]:
    """The commands, and what stands in their place."""
    from titanrun.cli.main import COMMANDS

    return iter((*COMMANDS, "--help", "--version"))


def listed_kinds(_: str) -> Iterator[str]:
    """What `ls` lists."""
    from titanrun.cli.ls import kinds

    return iter(kinds())
