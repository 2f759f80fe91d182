"""The text of a migrated recipe: values in the order of the schema, with the comments of the file they come from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from titanrun.config.emit import INDENT, PLAIN_KEY, flow, key_text
from titanrun.config.encoding import on_one_line
from titanrun.config.interpolate import escaped
from titanrun.config.problems import DataPath
from titanrun.config.shape import annotation_at, config_at, is_slot
from titanrun.recipe.migrate.comments import NONE, Comments
from titanrun.recipe.migrate.entries import Written
from titanrun.recipe.migrate.places import Target, data_of, path_in
from titanrun.recipe.migrate.plan import Item, placements
from titanrun.recipe.migrate.tool import Tool
from titanrun.recipe.recipe import Recipe

LEFT_OUT = "# Not carried over from {}, and why:"


@dataclass(slots=True)
class Leaf:
    """One value of the recipe; switched off where nothing reads it."""

    value: Any
    comments: Comments = NONE
    off: bool = False


@dataclass(slots=True)
class Sheet:
    """Everything that is written: leaves by target, comments of sections, and plain data of the whole, which says what is where."""

    leaves: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Comments] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def put(self, target: Target, leaf: Leaf) -> None:
        """Add one leaf; a value that is there stays."""
        holder = self.leaves
        for step in target[:-1]:
            holder = holder.setdefault(step, {})
            if isinstance(holder, Leaf):
                return
        holder.setdefault(target[-1], leaf)


def recipe_text(items: list[Item], written: Written, tool: Tool, *, head: Iterable[str]) -> str:
    """The whole recipe."""
    sheet = Sheet(data=data_of(placements(items)))
    for item in items:
        comments = item.entry.comments if item.entry else NONE
        if item.fate == "unread" and not is_plain(item):
            continue
        for target, value in item.targets.items():
            sheet.put(
                collapsed(target) if item.fate == "unread" else target,
                Leaf(value, comments, item.fate == "unread"),
            )
            comments = NONE
    tops = sections_of(written, sheet, tool)
    lines = [*head, *tops, "version: 1", *top_lines(sheet), *left_out(items, tool)]
    return "".join(f"{line}\n" for line in lines)


def is_plain(item: Item) -> bool:
    """Whether an unread key can stand in the recipe, switched off: not if it belongs to a component that is not there."""
    return all(not step.startswith("[") for target in item.targets for step in target) and bool(
        item.targets
    )


def collapsed(target: Target) -> Target:
    """The key of a component instead of its name alone."""
    return target[:-1] if target[-1] == "name" and len(target) > 1 else target


def sections_of(written: Written, sheet: Sheet, tool: Tool) -> Iterator[str]:
    """Gives the comments of tables to the sections of the same name, and yields those of no section, for the top."""
    for table, comments in written.tables.items():
        section = tool.sections.get(table, table.partition(".")[0])
        if section in sheet.leaves and not isinstance(sheet.leaves[section], Leaf):
            before = sheet.sections.get(section, NONE)
            sheet.sections[section] = Comments(
                (*before.above, *comments.above), before.behind or comments.behind, comments.below
            )
        else:
            yield from (
                line for line in (*comments.above, comments.behind, *comments.below) if line
            )


def top_lines(sheet: Sheet) -> Iterator[str]:
    """The recipe's sections with an empty line before each."""
    for name in ordered(sheet.leaves, (), sheet):
        child = sheet.leaves[name]
        if not isinstance(child, Leaf):
            yield ""
        yield from lines_of(name, child, (name,), sheet)


def ordered(holder: dict[str, Any], target: Target, sheet: Sheet) -> list[str]:
    """Keys in the order of the schema, `name` first; those that it does not have last."""
    config = config_at(Recipe, sheet.data, path_in(sheet.data, target))
    known = (
        ["name", *(config.model_fields if config else ())] if target else list(Recipe.model_fields)
    )
    return sorted(holder, key=lambda key: known.index(key) if key in known else len(known))


def lines_of(name: str, child: Any, target: Target, sheet: Sheet) -> Iterator[str]:
    """The lines of one key."""
    if isinstance(child, Leaf):
        yield from leaf_lines(key_text(name, PLAIN_KEY), child)
        return
    bare = bare_component(child, path_in(sheet.data, target))
    if bare is not None:
        yield from leaf_lines(name, bare)
        return
    comments = sheet.sections.get(name, NONE) if len(target) == 1 else NONE
    mark = "#" if all(leaf.off for leaf in leaves_below(child)) else ""
    yield from comments.above
    yield with_comment(f"{mark}{name}:", comments.behind)
    inside = (
        component_lines(child, target, sheet)
        if is_component_list(child)
        else mapping_lines(child, target, sheet)
    )
    yield from (INDENT + line for line in inside)
    yield from comments.below


def mapping_lines(holder: dict[str, Any], target: Target, sheet: Sheet) -> Iterator[str]:
    """The keys of a section or component."""
    for key in ordered(holder, target, sheet):
        yield from lines_of(key, holder[key], (*target, key), sheet)


def component_lines(holder: dict[str, Any], target: Target, sheet: Sheet) -> Iterator[str]:
    """The components of a list."""
    for step, fields in holder.items():
        named = {"name": Leaf(step[1:-1]), **fields}
        first, *rest = mapping_lines(named, (*target, step), sheet)
        above = (
            [line for line in (first, *rest) if line.startswith("#")]
            if first.startswith("#")
            else []
        )
        lines = [line for line in (first, *rest) if line not in above]
        yield from above
        yield f"- {lines[0]}"
        yield from (INDENT + line for line in lines[1:])


def is_component_list(holder: dict[str, Any]) -> bool:
    """Whether a mapping stands for a list of components by name."""
    return all(key.startswith("[") for key in holder)


def bare_component(child: dict[str, Any], path: DataPath) -> Leaf | None:
    """A component without fields of its own as its bare name, a list of such as a list of names."""
    if is_component_list(child) and all(set(fields) == {"name"} for fields in child.values()):
        first = next(iter(child.values()))["name"]
        return Leaf([step[1:-1] for step in child], first.comments)
    if set(child) == {"name"} and is_slot(annotation_at(Recipe, {}, path)):
        only: Leaf = child["name"]
        return only
    return None


def leaves_below(child: Any) -> Iterator[Leaf]:
    """Every leaf of a section."""
    if isinstance(child, Leaf):
        yield child
    else:
        for inside in child.values():
            yield from leaves_below(inside)


def leaf_lines(name: str, leaf: Leaf) -> Iterator[str]:
    """One value between its comments."""
    yield from leaf.comments.above
    yield with_comment(
        f"{'#' * leaf.off}{name}: {flow(escaped({'': leaf.value})[''])}", leaf.comments.behind
    )
    yield from leaf.comments.below


def with_comment(line: str, comment: str) -> str:
    """A line with the comment behind it."""
    return f"{line}  {comment}" if comment else line


def is_lost(item: Item, tool: Tool) -> bool:
    """Whether a written key would be nowhere in the recipe; what nothing reads counts where it is not the program's default."""
    if item.entry is None:
        return False
    if item.fate == "refused":
        return not item.targets
    return (
        item.fate == "unread" and not is_plain(item) and item.value != tool.keys[item.path].default
    )


def left_out(items: list[Item], tool: Tool) -> Iterator[str]:
    """What the recipe has no place for, as comments at its end."""
    gone = [item for item in items if is_lost(item, tool)]
    if gone:
        yield ""
        yield LEFT_OUT.format(tool.name)
    for item in gone:
        assert item.entry is not None
        comments = item.entry.comments
        yield from comments.above
        yield with_comment(
            on_one_line(f"# {tool.line(item.entry.written, item.value)}"), comments.behind
        )
        yield on_one_line(f"#   {item.words}")
        yield from comments.below
