"""`titanrun ls`: what can be named in a recipe."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from titanrun.cli.arguments import Parser
from titanrun.cli.plugin_option import takes_plugins, use_plugins
from titanrun.cli.terminal import columns, fitted
from titanrun.cli.voice import detail
from titanrun.config import registry
from titanrun.config.base import ComponentConfig
from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.shape import bare, is_slot, item_type
from titanrun.config.suggest import closest, listing
from titanrun.models.shared.flavors import flavors
from titanrun.recipe import catalogue, menu
from titanrun.recipe.plugins import plugins_installed, recipe_class

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXAMPLES = """  titanrun ls                  everything
  titanrun ls models           model families and their flavors
  titanrun ls recipes --method pretraining --model llama3
  titanrun ls recipes --json
  titanrun ls plugins          the plug-ins that are installed
  titanrun ls optimizers --plugins my_plugin"""


def run(arguments: list[str]) -> int:
    """Print the names of one kind, or of all."""
    menu.open_menu()
    parser = Parser(
        "ls", "List what can be named: recipes, models, optimizers, datasets ...", EXAMPLES
    )
    parser.add_argument("kind", nargs="?", help="one of " + listing(kinds(), last="or", most=99))
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    takes_plugins(parser)
    for key in catalogue.HEADER_KEYS:
        parser.add_argument(
            f"--{key}", metavar="TEXT", help=f"only recipes whose {key} has these words"
        )
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise unknown_option(unknown[0])
    use_plugins(options)
    known = kinds()
    if options.kind is not None and options.kind not in known:
        meant = closest(options.kind, known)
        help = (
            f"did you mean '{meant}'?" if meant else f"kinds: {listing(known, last='and', most=99)}"
        )
        raise fail("usage", f"nothing is listed under '{options.kind}'", help=help)
    wanted = {
        key: getattr(options, key)
        for key in catalogue.HEADER_KEYS
        if getattr(options, key) is not None
    }
    if wanted and options.kind != "recipes":
        raise fail(
            "usage", f"--{next(iter(wanted))} filters recipes only", help="titanrun ls recipes ..."
        )
    for kind in [options.kind] if options.kind else known:
        if kind == "recipes":
            print_recipes(
                [entry for entry in catalogue.shipped() if entry.matches(wanted)], options
            )
        else:
            print_kind(kind, rows(kind), as_json=options.json)
    detail(options, f"shipped recipes are in {catalogue.folder()}")
    return 0


def unknown_option(written: str) -> ProblemsFound:
    """The problem of an option or a filter that there is not."""
    known = [f"--{key}" for key in (*catalogue.HEADER_KEYS, "json")]
    meant = closest(written.partition("=")[0], known)
    help = (
        f"did you mean '{meant}'?"
        if meant
        else f"recipes are filtered by {listing(known[:-1], last='and')}"
    )
    return fail("usage", f"unrecognized arguments: {written}", help=help)


def print_recipes(entries: list[catalogue.Entry], options: Namespace) -> None:
    """The recipes with their purpose; asked for alone, with the rest of their header too."""
    if options.json:
        for entry in entries:
            known = {
                "kind": "recipes",
                "name": entry.name,
                "origin": "shipped",
                "description": entry.header.get("purpose", ""),
            }
            print(
                json.dumps(
                    {**known, **{key: entry.header.get(key) for key in catalogue.HEADER_KEYS}},
                    ensure_ascii=False,
                )
            )
        return
    print("recipes:")
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        print(fitted(f"  {entry.name:<{width}}  {entry.header.get('purpose', '')}", columns()))
        if options.kind:
            for key in catalogue.HEADER_KEYS[1:]:
                print(
                    fitted(
                        f"  {'':<{width}}    {key + ':':<9}{entry.header.get(key, '')}", columns()
                    )
                )
    if not entries:
        print("  (none like this)")


def kinds() -> list[str]:
    """What can be listed."""
    return ["recipes", "plugins", "models", *sorted(name for name in slots() if name != "model")]


def slots() -> dict[str, type[ComponentConfig]]:
    """All slots that a recipe reaches, by the word that is listed."""
    found: dict[str, type[ComponentConfig]] = {}
    recipe = recipe_class()
    for config in (recipe, *(bare(field.annotation) for field in recipe.model_fields.values())):
        for field in getattr(config, "model_fields", {}).values():
            for annotation in (bare(field.annotation), item_type(field.annotation)):
                if is_slot(annotation):
                    found[plural(annotation.slot)] = annotation
    return found


def plural(slot: str) -> str:
    """`optimizer` -> `optimizers`, `loss` -> `losses`; `model` stays the key of `models`."""
    return (
        slot
        if slot == "model" or (slot.endswith("s") and slot != "loss")
        else f"{slot}es"
        if slot in ("loss", "launch")
        else f"{slot}s"
    )


def rows(kind: str) -> list[tuple[str, str, str]]:
    """Name, origin and one sentence for every entry of a kind."""
    if kind == "plugins":
        return [
            (name, name, described_package(point))
            for name, point in sorted(plugins_installed().items())
        ]
    slot = slots()["model" if kind == "models" else kind]
    found = []
    for name, choice in registry.choices(slot).items():
        sentence = (choice.__doc__ or "").split("\n")[0]
        if kind == "models":
            sentence += f" Flavors: {listing(flavors(name), last='and', most=99)}."
        found.append((name, menu.origin_of(choice), sentence))
    return found


def described_package(point: "EntryPoint") -> str:
    """The package that a plug-in is in, and its version; the plug-in is not imported."""
    return "" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def print_kind(kind: str, entries: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """One kind, as aligned lines or as JSON lines."""
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
        print(fitted(f"  {name:<{width}}  {sentence}{mark}", columns()))
    if not entries:
        print("  (none yet)")
