"""`titanrun diff-config`: what differs between two recipes, runs or checkpoints."""

import json

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.terminal import columns
from titanrun.cli.voice import detail_files
from titanrun.config.problems import Origin
from titanrun.config.render import shorten
from titanrun.config.tree import path_text
from titanrun.launch.environment import environment
from titanrun.recipe.compared import Difference, differences, read_side

EXAMPLES = """  titanrun diff-config a.yaml b.yaml
  titanrun diff-config recipes/llama3_debug.yaml runs/first
  titanrun diff-config a.yaml a.yaml optimizer.lr=1e-3      overrides change the second
  titanrun diff-config runs/a runs/b --json
  titanrun diff-config runs/a runs/b --quiet                only the exit code: 0 same, 1 differs, 2 trouble"""


def run(arguments: list[str]) -> int:
    """0: the same; 1: they differ; 2: one of them has problems."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "diff-config", "What differs between two recipes, run directories or checkpoints.", EXAMPLES
    )
    parser.add_argument("a", help="a recipe, a run directory or a checkpoint")
    parser.add_argument("b", help="another one")
    parser.add_argument(
        "overrides", nargs="*", metavar="path=value", help="changes to b: path=value"
    )
    parser.add_argument(
        "--written",
        action="store_true",
        help="compare what was written; default: all values, defaults filled in",
    )
    parser.add_argument(
        "--effective",
        action="store_true",
        help="the default: compare all values, defaults filled in",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object a difference"
    )
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="short for --format json"
    )
    options = parser.parse_intermixed_args(others)
    known = environment()
    left, right = (
        read_side(options.a, [], known),
        read_side(options.b, [*overrides, *options.overrides], known),
    )
    for side in (left, right):
        detail_files(options, side.resolved.tree)
    found = differences(left, right, "written" if options.written else "effective")
    if options.format == "json":
        for difference in found:
            print(json.dumps(as_data(difference), ensure_ascii=False))
    elif found and not options.quiet:
        print_table(found)
    return 1 if found else 0


def print_table(found: list[Difference]) -> None:
    """Path, both values with their origins, and the class of each difference, in columns."""
    lines = [(path_text(item.change.path), change_text(item), meaning_text(item)) for item in found]
    terminal = columns()
    if terminal is not None and any(
        len(path) + len(text) + len(meaning) + 4 > terminal for path, text, meaning in lines
    ):
        for path, text, meaning in lines:
            print(f"{path}  {meaning}\n{stacked(text, terminal)}")
        return
    path_width = max(len(path) for path, _, _ in lines)
    text_width = min(80, max(len(text) for _, text, _ in lines))
    for path, text, meaning in lines:
        print(f"{path:<{path_width}}  {text:<{text_width}}  {meaning}")


def stacked(text: str, width: int) -> str:
    """A change below its path, each side on a line of its own where one line is too short."""
    return "    " + (text if len(text) + 4 <= width else text.replace(" -> ", "\n    -> ", 1))


def change_text(item: Difference) -> str:
    """`0.0003 (base.yaml:15) -> 0.001 (override 1)`."""
    change = item.change
    left, right = shown(change.left, item.left), shown(change.right, item.right)
    if change.kind == "added":
        return f"+ {right}"
    if change.kind == "removed":
        return f"- {left}"
    if change.kind == "changed":
        return f"{left} -> {right}"
    keys = [*(f"-{key}" for key in change.removed), *(f"+{key}" for key in change.added)]
    return f"{left} -> {right}  (component replaced{': ' if keys else ''}{' '.join(keys)})"


def shown(value: object, origin: Origin | None) -> str:
    """A value and where it was written."""
    text = value if isinstance(value, str) and value else inline(value)
    if origin is None:
        return text
    place = (
        origin.source.name.strip("<>")
        if origin.source.kind == "override"
        else f"{origin.source.name}:{origin.line}"
    )
    return f"{text} ({place})"


def inline(value: object) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return value if isinstance(value, str) and value else shorten(value)


def meaning_text(item: Difference) -> str:
    """The class, and whether a resume allows the change."""
    return item.change_class + (", a resume allows it" if item.resume else "")


def as_data(item: Difference) -> dict[str, object]:
    """One difference as a JSON object."""
    change = item.change
    return {
        "path": path_text(change.path),
        "kind": change.kind,
        "a": change.left,
        "b": change.right,
        "removed": list(change.removed),
        "added": list(change.added),
        "class": item.change_class,
        "resume": item.resume,
        "a_origin": None if item.left is None else str(item.left),
        "b_origin": None if item.right is None else str(item.right),
    }
