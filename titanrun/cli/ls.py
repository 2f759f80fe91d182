"""`titanrun ls`: what can be named in a recipe."""

import json

from titanrun.cli.arguments import Parser
from titanrun.config import registry
from titanrun.config.base import ComponentConfig
from titanrun.config.problems import fail
from titanrun.config.shape import bare, is_slot, item_type
from titanrun.config.suggest import closest, listing
from titanrun.models.shared.flavors import flavors
from titanrun.recipe import catalogue, menu
from titanrun.recipe.recipe import Recipe

EXAMPLES = """  titanrun ls                  everything
  titanrun ls models           model families and their flavors
  titanrun ls recipes --json"""


def run(arguments: list[str]) -> int:
    """Print the names of one kind, or of all."""
    menu.open_menu()
    parser = Parser("ls", "List what can be named: recipes, models, optimizers, datasets ...", EXAMPLES)
    parser.add_argument("kind", nargs="?", help="one of " + listing(kinds(), last="or", most=99))
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    known = kinds()
    if options.kind is not None and options.kind not in known:
        meant = closest(options.kind, known)
        help = f"did you mean '{meant}'?" if meant else f"kinds: {listing(known, last='and', most=99)}"
        raise fail("usage", f"nothing is listed under '{options.kind}'", help=help)
    for kind in [options.kind] if options.kind else known:
        print_kind(kind, rows(kind), as_json=options.json)
    return 0


def kinds() -> list[str]:
    """What can be listed."""
    return ["recipes", "models", *sorted(name for name in slots() if name != "model")]


def slots() -> dict[str, type[ComponentConfig]]:
    """All slots that a recipe reaches, by the word that is listed."""
    found: dict[str, type[ComponentConfig]] = {}
    for config in (Recipe, *(bare(field.annotation) for field in Recipe.model_fields.values())):
        for field in getattr(config, "model_fields", {}).values():
            for annotation in (bare(field.annotation), item_type(field.annotation)):
                if is_slot(annotation):
                    found[plural(annotation.slot)] = annotation
    return found


def plural(slot: str) -> str:
    """`optimizer` -> `optimizers`; `model` stays the key of `models`."""
    return slot if slot == "model" or (slot.endswith("s") and slot != "loss") else "losses" if slot == "loss" else f"{slot}s"


def rows(kind: str) -> list[tuple[str, str, str]]:
    """Name, origin and one sentence for every entry of a kind."""
    if kind == "recipes":
        return [(entry.name, "shipped", entry.purpose) for entry in catalogue.shipped()]
    slot = slots()["model" if kind == "models" else kind]
    found = []
    for name, choice in registry.choices(slot).items():
        sentence = (choice.__doc__ or "").split("\n")[0]
        if kind == "models":
            sentence += f" Flavors: {listing(flavors(name), last='and', most=99)}."
        found.append((name, menu.origin_of(choice), sentence))
    return found


def print_kind(kind: str, entries: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """One kind, as aligned lines or as JSON lines."""
    if as_json:
        for name, origin, sentence in entries:
            print(json.dumps({"kind": kind, "name": name, "origin": origin, "description": sentence}, ensure_ascii=False))
        return
    print(f"{kind}:")
    width = max((len(name) for name, _, _ in entries), default=0)
    for name, origin, sentence in entries:
        mark = "" if origin in ("built in", "shipped") else f" [{origin}]"
        print(f"  {name:<{width}}  {sentence}{mark}")
    if not entries:
        print("  (none yet)")
