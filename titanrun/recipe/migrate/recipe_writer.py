"""Text of a migrated recipe: values in schema order, with the comments of the source."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from titanrun.config.encoding import escape_to_one_line
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import DataPath
from titanrun.config.redaction import star_out_assigned_secrets
from titanrun.config.serialize import INDENT, PLAIN_KEY, format_key, to_flow_yaml
from titanrun.config.type_introspection import find_annotation, find_config_class, is_slot
from titanrun.recipe.migrate.migration_plan import MigrationItem, iter_placements
from titanrun.recipe.migrate.source_entries import SourceEntries
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.target_paths import TargetPath, build_recipe_data, get_data_path
from titanrun.recipe.migrate.toml_comments import NO_COMMENTS, KeyComments
from titanrun.recipe.recipe import Recipe

LEFT_OUT = "# Not carried over from {}, with the reason:"


@dataclass(slots=True)
class RecipeLeaf:
    """One value of the recipe; commented out if it has no effect."""

    value: Any
    comments: KeyComments = NO_COMMENTS
    is_off: bool = False


@dataclass(slots=True)
class RecipeDraft:
    """Content of a recipe: leaves by target, comments of sections, and plain data.

    The plain data of the whole recipe locates components.
    """

    leaves: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, KeyComments] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def add_leaf(self, target: TargetPath, leaf: RecipeLeaf) -> None:
        """Add one leaf; an existing value stays, with the comments of both."""
        holder = self.leaves
        for step in target[:-1]:
            holder = holder.setdefault(step, {})
            if isinstance(holder, RecipeLeaf):
                return
        before = holder.setdefault(target[-1], leaf)
        if isinstance(before, RecipeLeaf) and before is not leaf:
            before.comments = join_comments(before.comments, leaf.comments)


def join_comments(first: KeyComments, second: KeyComments) -> KeyComments:
    """Return the comments of two keys for one that stands for both."""
    trailing = [comment for comment in (first.trailing, second.trailing) if comment]
    return KeyComments(
        (*first.above, *second.above, *trailing[1:]),
        trailing[0] if trailing else "",
        (*first.below, *second.below),
    )


def format_migrated_recipe(
    items: list[MigrationItem],
    written: SourceEntries,
    tool: SourceTool,
    *,
    header_lines: Iterable[str],
) -> str:
    """Return the text of the whole recipe."""
    sheet = RecipeDraft(data=build_recipe_data(iter_placements(items)))
    for item in items:
        comments = item.entry.comments if item.entry else NO_COMMENTS
        if item.outcome == "unread" and not can_be_commented_out(item):
            continue
        for target, value in item.targets.items():
            sheet.add_leaf(
                get_component_target(target) if item.outcome == "unread" else target,
                RecipeLeaf(value, comments, item.outcome == "unread"),
            )
            comments = NO_COMMENTS
    tops = assign_section_comments(written, sheet, tool)
    lines = [
        *header_lines,
        *tops,
        "version: 1",
        *iter_top_lines(sheet),
        *iter_left_out_lines(items, tool),
    ]
    return "".join(f"{line}\n" for line in lines)


def can_be_commented_out(item: MigrationItem) -> bool:
    """Return whether an unread key can be in the recipe, commented out.

    It cannot if it belongs to a component that the recipe does not have.
    """
    return all(not step.startswith("[") for target in item.targets for step in target) and bool(
        item.targets
    )


def get_component_target(target: TargetPath) -> TargetPath:
    """Return the key of a component instead of its name alone."""
    return target[:-1] if target[-1] == "name" and len(target) > 1 else target


def assign_section_comments(
    written: SourceEntries, sheet: RecipeDraft, tool: SourceTool
) -> Iterator[str]:
    """Assign the comments of tables to the sections of the same name.

    Yield those without a section, for the top of the recipe.
    """
    for table, comments in written.table_comments.items():
        section = tool.sections.get(table, table.partition(".")[0])
        if section in sheet.leaves and not isinstance(sheet.leaves[section], RecipeLeaf):
            before = sheet.sections.get(section, NO_COMMENTS)
            sheet.sections[section] = KeyComments(
                (*before.above, *comments.above),
                before.trailing or comments.trailing,
                comments.below,
            )
        else:
            yield from (
                line for line in (*comments.above, comments.trailing, *comments.below) if line
            )


def iter_top_lines(sheet: RecipeDraft) -> Iterator[str]:
    """Yield the recipe's sections with an empty line before each."""
    for name in sort_keys(sheet.leaves, (), sheet):
        child = sheet.leaves[name]
        if not isinstance(child, RecipeLeaf):
            yield ""
        yield from iter_key_lines(name, child, (name,), sheet)


def sort_keys(holder: dict[str, Any], target: TargetPath, sheet: RecipeDraft) -> list[str]:
    """Return keys in schema order, `name` first, unknown ones last."""
    config = find_config_class(Recipe, sheet.data, get_data_path(sheet.data, target))
    known = (
        ["name", *(config.model_fields if config else ())] if target else list(Recipe.model_fields)
    )
    return sorted(holder, key=lambda key: known.index(key) if key in known else len(known))


def iter_key_lines(name: str, child: Any, target: TargetPath, sheet: RecipeDraft) -> Iterator[str]:
    """Yield the lines of one key."""
    if isinstance(child, RecipeLeaf):
        yield from iter_leaf_lines(format_key(name, PLAIN_KEY), child)
        return
    bare = find_bare_component(child, get_data_path(sheet.data, target))
    if bare is not None:
        yield from iter_leaf_lines(name, bare)
        return
    comments = sheet.sections.get(name, NO_COMMENTS) if len(target) == 1 else NO_COMMENTS
    mark = "#" if all(leaf.is_off for leaf in iter_recipe_leaves(child)) else ""
    yield from comments.above
    yield append_comment(f"{mark}{name}:", comments.trailing)
    inside = (
        iter_component_lines(child, target, sheet)
        if is_component_list(child)
        else iter_mapping_lines(child, target, sheet)
    )
    yield from (INDENT + line for line in inside)
    yield from comments.below


def iter_mapping_lines(
    holder: dict[str, Any], target: TargetPath, sheet: RecipeDraft
) -> Iterator[str]:
    """Yield the keys of a section or component."""
    for key in sort_keys(holder, target, sheet):
        yield from iter_key_lines(key, holder[key], (*target, key), sheet)


def iter_component_lines(
    holder: dict[str, Any], target: TargetPath, sheet: RecipeDraft
) -> Iterator[str]:
    """Yield the components of a list."""
    for step, fields in holder.items():
        named = {"name": RecipeLeaf(step[1:-1]), **fields}
        first, *rest = iter_mapping_lines(named, (*target, step), sheet)
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
    """Return whether a mapping represents a list of components by name."""
    return all(key.startswith("[") for key in holder)


def find_bare_component(child: dict[str, Any], path: DataPath) -> RecipeLeaf | None:
    """Return a component without fields as its bare name, a list of them as names."""
    if is_component_list(child) and all(set(fields) == {"name"} for fields in child.values()):
        first = next(iter(child.values()))["name"]
        return RecipeLeaf([step[1:-1] for step in child], first.comments)
    if set(child) == {"name"} and is_slot(find_annotation(Recipe, {}, path)):
        only: RecipeLeaf = child["name"]
        return only
    return None


def iter_recipe_leaves(child: Any) -> Iterator[RecipeLeaf]:
    """Yield every leaf of a section."""
    if isinstance(child, RecipeLeaf):
        yield child
    else:
        for inside in child.values():
            yield from iter_recipe_leaves(inside)


def iter_leaf_lines(name: str, leaf: RecipeLeaf) -> Iterator[str]:
    """Yield one value between its comments, a list of mappings with one in each line."""
    yield from leaf.comments.above
    if isinstance(leaf.value, list) and leaf.value and isinstance(leaf.value[0], dict):
        mark = "#" * leaf.is_off
        yield append_comment(f"{mark}{name}:", leaf.comments.trailing)
        for item in escape_references({"": leaf.value})[""]:
            yield f"{mark}{INDENT}- {to_flow_yaml(item)}"
        yield from leaf.comments.below
        return
    yield append_comment(
        f"{'#' * leaf.is_off}{name}: {to_flow_yaml(escape_references({'': leaf.value})[''])}",
        leaf.comments.trailing,
    )
    yield from leaf.comments.below


def append_comment(line: str, comment: str) -> str:
    """Return a line with a trailing comment."""
    return f"{line}  {comment}" if comment else line


def is_left_out(item: MigrationItem, tool: SourceTool) -> bool:
    """Return whether a written key would not appear in the recipe.

    A key without effect counts only if it differs from the program's default.
    """
    if item.entry is None:
        return False
    if item.outcome == "refused":
        return not item.targets
    if item.outcome == "manual":
        return True
    key = tool.keys.get(item.path)
    return (
        item.outcome == "unread"
        and not can_be_commented_out(item)
        and key is not None
        and item.value != key.default
    )


def iter_left_out_lines(items: list[MigrationItem], tool: SourceTool) -> Iterator[str]:
    """Yield the keys that the recipe has no place for, as comments for its end."""
    gone = [item for item in items if is_left_out(item, tool)]
    if gone:
        yield ""
        yield LEFT_OUT.format(tool.name)
    for item in gone:
        assert item.entry is not None
        comments = item.entry.comments
        yield from comments.above
        line = escape_to_one_line(f"# {tool.format_line(item.entry.written_path, item.value)}")
        yield append_comment(star_out_assigned_secrets(line), comments.trailing)
        words = f"set {item.words}" if item.outcome == "manual" else item.words
        yield escape_to_one_line(f"#   {words}")
        yield from comments.below
