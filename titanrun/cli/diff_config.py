"""`titanrun diff-config`: compare two recipes, runs or checkpoints."""

import json

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.color import Style, style_text
from titanrun.cli.messages import print_source_files
from titanrun.cli.run_argument import find_run_or_recipe
from titanrun.cli.run_groups import find_single_runs
from titanrun.cli.stdin_argument import add_stdin_option, read_stdin_argument
from titanrun.cli.terminal import get_terminal_width, wrap_to_width
from titanrun.config.control_characters import CONTROL_CHARACTER
from titanrun.config.diagnostics import format_short_value
from titanrun.config.problems import Origin
from titanrun.config.serialize import quote_text
from titanrun.config.tree import format_path
from titanrun.config.yaml_scalars import parse_scalar
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.comparing.recipe_diff import FieldDiff, diff_recipes, load_diff_side

ARROW = " -> "
NOTE_START = "  (component replaced"
EXAMPLES = """  titanrun diff-config a.yaml b.yaml
  titanrun diff-config recipes/llama3_debug.yaml runs/first
  titanrun diff-config - my.yaml                        the first from standard input
  titanrun diff-config a.yaml a.yaml optimizer.lr=1e-3  overrides change the second
  titanrun diff-config runs/a runs/b --json
  titanrun diff-config runs/a runs/b --quiet  only the exit code: 0 equal, 1 differs, 2 error"""


def run(arguments: list[str]) -> int:
    """Return 0 if they are equal, 1 if they differ, 2 if one of them has problems."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser(
        "diff-config", "Compare two recipes, run directories or checkpoints.", EXAMPLES
    )
    parser.add_argument("a", help="a recipe, a run directory or a checkpoint")
    parser.add_argument("b", help="another one")
    parser.add_argument(
        "overrides", nargs="*", metavar="path=value", help="changes to b: path=value"
    )
    parser.add_argument(
        "--written",
        action="store_true",
        help="compare the written values; default: all values, with defaults",
    )
    parser.add_argument(
        "--effective",
        action="store_true",
        help="the default: compare all values, with defaults",
    )
    parser.add_format_option("json: one object per difference")
    add_stdin_option(parser)
    options = parser.parse_intermixed_args(others)
    options.a, options.b = read_stdin_argument([options.a, options.b], options)
    options.a, options.b = find_single_runs(
        "diff-config", [options.a, options.b], find=find_run_or_recipe
    )
    known = get_environment()
    left, right = (
        load_diff_side(options.a, [], known),
        load_diff_side(options.b, [*overrides, *options.overrides], known),
    )
    for side in (left, right):
        print_source_files(options, side.resolved.tree)
    found = diff_recipes(left, right, "written" if options.written else "effective")
    if options.format == "json":
        for difference in found:
            print(json.dumps(field_diff_to_dict(difference), ensure_ascii=False))
    elif found and not options.quiet:
        print_recipe_diff(found)
    return 1 if found else 0


def print_recipe_diff(found: list[FieldDiff]) -> None:
    """Print path, both values with origins, and change class of each difference, in columns."""
    lines = [
        (format_path(item.change.path), format_field_change(item), format_change_class(item))
        for item in found
    ]
    terminal = get_terminal_width()
    if terminal is not None and any(
        len(path) + len(text) + len(meaning) + 4 > terminal for path, text, meaning in lines
    ):
        for path, text, meaning in lines:
            head = wrap_to_width(f"{path}  {meaning}", terminal)
            print(f"{style_text(path, 'strong')}{head.removeprefix(path)}")
            print(format_stacked_change(text, terminal))
        return
    path_width = max(len(path) for path, _, _ in lines)
    text_width = min(80, max(len(text) for _, text, _ in lines))
    for path, text, meaning in lines:
        pad = " " * (text_width - len(text))
        shown = style_text(f"{path:<{path_width}}", "strong")
        print(f"{shown}  {colorize_change(text)}{pad}  {meaning}")


def format_stacked_change(text: str, width: int) -> str:
    """Format a change below its path, on several lines if one line is too short."""
    if len(text) + 4 <= width:
        return f"    {colorize_change(text)}"
    change, note_start, note = text.partition(NOTE_START)
    old, arrow, new = change.partition(ARROW)
    lines = [old, *([f"{arrow.lstrip()}{new}"] if arrow else [])]
    lines += [f"{note_start.lstrip()}{note}"] if note else []
    return "\n".join(
        style_text(wrap_to_width(f"    {line}", width), get_change_style(line)) for line in lines
    )


def colorize_change(text: str) -> str:
    """Color the old and the new value of a change on one line."""
    change, note_start, note = text.partition(NOTE_START)
    old, arrow, new = change.partition(ARROW)
    shown = style_text(old, get_change_style(old))
    return f"{shown}{arrow}{style_text(new, 'added') if arrow else ''}{note_start}{note}"


def get_change_style(text: str) -> Style | None:
    """Return the style of a part of a change: a new value, a note, or an old value."""
    if text.startswith(NOTE_START.lstrip()):
        return None
    return "added" if text.startswith(("+ ", ARROW.lstrip())) else "removed"


def format_field_change(item: FieldDiff) -> str:
    """Format a change: `0.0003 (base.yaml:15) -> 0.001 (override 1)`."""
    change = item.change
    left, right = (
        format_sourced_value(change.left, item.left),
        format_sourced_value(change.right, item.right),
    )
    if change.kind == "added":
        return f"+ {right}"
    if change.kind == "removed":
        return f"- {left}"
    if change.kind == "changed":
        return f"{left}{ARROW}{right}"
    keys = [*(f"-{key}" for key in change.removed_keys), *(f"+{key}" for key in change.added_keys)]
    return f"{left}{ARROW}{right}{NOTE_START}{': ' if keys else ''}{' '.join(keys)})"


def format_sourced_value(value: object, origin: Origin | None) -> str:
    """Format a value with its origin."""
    text = format_inline_value(value)
    if origin is None:
        return text
    place = (
        origin.source.name.strip("<>")
        if origin.source.kind == "override"
        else f"{origin.source.name}:{origin.line}"
    )
    return f"{text} ({place})"


def format_inline_value(value: object) -> str:
    """Format a value on one line: text without quotes, unless it would be read as another value."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{key}: {format_inline_value(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(format_inline_value, value)) + "]"
    if not isinstance(value, str) or not value:
        return format_short_value(value)
    is_plain = value == value.strip() and CONTROL_CHARACTER.search(value) is None
    return value if is_plain and isinstance(parse_scalar(value), str) else quote_text(value)


def format_change_class(item: FieldDiff) -> str:
    """Format the change class, and whether a resume allows the change."""
    return f"{item.change_class}, a resume {'allows' if item.allows_resume else 'refuses'} it"


def field_diff_to_dict(item: FieldDiff) -> dict[str, object]:
    """Convert one difference to a JSON object."""
    change = item.change
    return {
        "path": format_path(change.path),
        "kind": change.kind,
        "a": change.left,
        "b": change.right,
        "removed": list(change.removed_keys),
        "added": list(change.added_keys),
        "class": item.change_class,
        "resume": item.allows_resume,
        "a_origin": None if item.left is None else str(item.left),
        "b_origin": None if item.right is None else str(item.right),
    }
