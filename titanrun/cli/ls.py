"""`titanrun ls`: list the names that a recipe can use."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_detail, print_note
from titanrun.cli.plugin_option import add_plugins_option, use_plugins
from titanrun.cli.terminal import get_terminal_width, wrap_to_width
from titanrun.config import registry
from titanrun.config.base import ComponentConfig
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.type_introspection import find_item_type, is_slot, unwrap_annotation
from titanrun.models.shared.spec.flavors import load_flavors
from titanrun.recipe import builtins
from titanrun.recipe.plugins import get_installed_plugins, get_recipe_class
from titanrun.recipe.reference import shipped_recipes

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# of `1 GPU with 141 GB`
DEVICES_WIDTH = 17
EXAMPLES = """  titanrun ls          everything
  titanrun ls models   model families and their flavors
  titanrun ls recipes lora chat          recipes about both
  titanrun ls recipes --devices "1 GPU" --long
  titanrun ls recipes --json
  titanrun ls plugins  installed plug-ins
  titanrun ls optimizers --plugins my_plugin"""


def run(arguments: list[str]) -> int:
    """Print the names of one kind, or of all."""
    builtins.register_builtins()
    options, unknown = build_parser().parse_known_intermixed_args(arguments)
    if unknown:
        raise build_unknown_option_error(unknown[0])
    use_plugins(options)
    known = get_listable_kinds()
    if options.kind is not None and options.kind not in known:
        raise build_unknown_kind_error(options.kind, known)
    recipes = select_recipes(options)
    for kind in [options.kind] if options.kind else known:
        if kind == "recipes":
            print_recipes(recipes, options)
        else:
            print_kind(kind, get_kind_rows(kind), as_json=options.json)
    print_detail(options, f"shipped recipes are in {shipped_recipes.get_shipped_folder()}")
    return 0


def build_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = CommandParser(
        "ls", "List available recipes, models, optimizers, datasets ...", EXAMPLES
    )
    parser.add_argument(
        "kind",
        nargs="?",
        help="one of " + format_word_list(get_listable_kinds(), conjunction="or", max_words=99),
    )
    parser.add_argument(
        "words", nargs="*", help="only recipes with all of these words in name or description"
    )
    parser.add_argument(
        "--long", action="store_true", help="also print model, method, devices and memory"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    add_plugins_option(parser)
    for key in shipped_recipes.HEADER_KEYS:
        parser.add_argument(
            f"--{key}", metavar="TEXT", help=f"only recipes whose {key} contains these words"
        )
    return parser


def select_recipes(options: Namespace) -> list[shipped_recipes.ShippedRecipe]:
    """Return the shipped recipes that pass the filters.

    Raises:
        ProblemsFound: if something else is filtered.
    """
    wanted = {
        key: getattr(options, key)
        for key in shipped_recipes.HEADER_KEYS
        if getattr(options, key) is not None
    }
    filters = [*(f"'{word}'" for word in options.words), *(f"--{key}" for key in wanted)]
    if filters and options.kind != "recipes":
        raise problem_error(
            "usage", f"{filters[0]} filters recipes only", hint="run titanrun ls recipes ..."
        )
    return [
        entry
        for entry in shipped_recipes.list_shipped_recipes()
        if entry.matches(wanted, options.words)
    ]


def build_unknown_kind_error(kind: str, known: list[str]) -> ProblemsFound:
    """Build the problem of an unknown kind."""
    meant = find_closest(kind, known)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"kinds: {format_word_list(known, conjunction='and', max_words=99)}"
    )
    return problem_error("usage", f"unknown kind '{kind}'", hint=hint)


def build_unknown_option_error(written: str) -> ProblemsFound:
    """Build the problem of an unknown option or filter."""
    known = [f"--{key}" for key in (*shipped_recipes.HEADER_KEYS, "json")]
    meant = find_closest(written.partition("=")[0], known)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"recipes are filtered by {format_word_list(known[:-1], conjunction='and')}"
    )
    return problem_error("usage", f"unrecognized arguments: {written}", hint=hint)


def print_recipes(entries: list[shipped_recipes.ShippedRecipe], options: Namespace) -> None:
    """Print the recipes by task, one a line, or with their whole headers."""
    if options.json:
        for entry in entries:
            known = {
                "kind": "recipes",
                "name": entry.name,
                "origin": "shipped",
                "description": entry.header.get("purpose", ""),
                "task": entry.task,
            }
            print(
                json.dumps(
                    {
                        **known,
                        **{key: entry.header.get(key) for key in shipped_recipes.HEADER_KEYS},
                    },
                    ensure_ascii=False,
                )
            )
        return
    print("recipes:")
    width = max((len(entry.name) for entry in entries), default=0)
    print_entry = print_long_entry if options.long else print_short_entry
    for task in shipped_recipes.TASKS:
        if chosen := [entry for entry in entries if entry.task == task]:
            print(f" {task}:")
            for entry in chosen:
                print_entry(entry, width)
    if not entries:
        print("  (no match)")
    elif options.kind and not options.long:
        print_note(options, "titanrun ls recipes WORD ... filters, --long says more")


def print_short_entry(entry: shipped_recipes.ShippedRecipe, width: int) -> None:
    """Print name, devices and purpose of a recipe in one line, cut at the terminal's edge."""
    devices, purpose = (entry.header.get(key, "") for key in ("devices", "purpose"))
    purpose = f"{purpose} (also: {', '.join(entry.names[1:])})" if entry.names[1:] else purpose
    line = f"  {entry.name:<{width}}  {devices:<{DEVICES_WIDTH}}  {purpose}"
    columns = get_terminal_width()
    print(line if columns is None or len(line) <= columns else line[: columns - 3] + "...")


def print_long_entry(entry: shipped_recipes.ShippedRecipe, width: int) -> None:
    """Print name and header of a recipe."""
    columns = get_terminal_width()
    print(wrap_to_width(f"  {entry.name:<{width}}  {entry.header.get('purpose', '')}", columns))
    for key in (*shipped_recipes.HEADER_KEYS[1:], *(("also",) if entry.names[1:] else ())):
        line = f"  {'':<{width}}    {key + ':':<9}{entry.header.get(key, '')}"
        print(wrap_to_width(line, columns))


def get_listable_kinds() -> list[str]:
    """Return the kinds that can be listed."""
    return [
        "recipes",
        "plugins",
        "models",
        *sorted(name for name in get_slots_by_word() if name != "model"),
    ]


def get_slots_by_word() -> dict[str, type[ComponentConfig]]:
    """Return all slots that a recipe reaches, by the word used to list them."""
    found: dict[str, type[ComponentConfig]] = {}
    recipe = get_recipe_class()
    for config in (
        recipe,
        *(unwrap_annotation(field.annotation) for field in recipe.model_fields.values()),
    ):
        for field in getattr(config, "model_fields", {}).values():
            for annotation in (
                unwrap_annotation(field.annotation),
                find_item_type(field.annotation),
            ):
                if is_slot(annotation):
                    found[pluralize_slot(annotation.slot)] = annotation
    return found


def pluralize_slot(slot: str) -> str:
    """Pluralize a slot: `optimizer` -> `optimizers`, `loss` -> `losses`.

    `model` stays the key of `models`.
    """
    return (
        slot
        if slot == "model" or (slot.endswith("s") and slot != "loss")
        else f"{slot}es"
        if slot in ("loss", "launch")
        else f"{slot}s"
    )


def get_kind_rows(kind: str) -> list[tuple[str, str, str]]:
    """Return name, origin and one sentence for every entry of a kind."""
    if kind == "plugins":
        return [
            (name, name, format_plugin_package(point))
            for name, point in sorted(get_installed_plugins().items())
        ]
    slot = get_slots_by_word()["model" if kind == "models" else kind]
    found = []
    for name, choice in registry.load_choices(slot).items():
        sentence = (choice.__doc__ or "").split("\n")[0]
        if kind == "models":
            flavors = format_word_list(load_flavors(name), conjunction="and", max_words=99)
            sentence += f" Flavors: {flavors}."
        found.append((name, builtins.get_component_origin(choice), sentence))
    return found


def format_plugin_package(point: "EntryPoint") -> str:
    """Return the package and version of a plug-in without importing it."""
    return "" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def print_kind(kind: str, entries: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """Print one kind as aligned lines or as JSON lines."""
    if as_json:
        for name, origin, sentence in entries:
            print(
                json.dumps(
                    {"kind": kind, "name": name, "origin": origin, "description": sentence},
                    ensure_ascii=False,
                )
            )
        return
    print(f"{kind}:")
    width = max((len(name) for name, _, _ in entries), default=0)
    for name, origin, sentence in entries:
        mark = "" if origin in ("built in", name) else f" [{origin}]"
        print(wrap_to_width(f"  {name:<{width}}  {sentence}{mark}", get_terminal_width()))
    if not entries:
        print("  (none yet)")
