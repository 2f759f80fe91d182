"""Words that may follow a cursor in a recipe: keys, values, components, references and files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.describe_field import describe_field, is_section_type
from titanrun.config.field_docs import get_class_summary, get_field_docs
from titanrun.config.problems import DataPath
from titanrun.config.read_source import FORMATS
from titanrun.config.references import ENVIRONMENT_PREFIX
from titanrun.config.serialize import format_readable_scalar
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    find_annotation,
    find_config_class,
    find_field_info,
    find_item_type,
    get_literal_values,
    is_slot,
    unwrap_annotation,
)
from titanrun.recipe import builtins
from titanrun.recipe.editing.cursor_context import CursorContext, find_cursor_context
from titanrun.recipe.editing.examiner import Document, get_folder, strip_stage
from titanrun.recipe.plugins import get_installed_plugins, get_recipe_class
from titanrun.recipe.recipe import FILE_ONLY_KEYS
from titanrun.recipe.reference.shipped_recipes import SHIPPED, get_shipped_folder
from titanrun.recipe.resolving.multi_stage import ID, STAGES
from titanrun.recipe.resolving.provenance import list_data_leaves

CompletionKind = Literal["key", "section", "value", "component", "reference", "file"]
EXTENDS = "extends"
PLUGINS = "plugins"
MAX_FILES = 200


@dataclass(frozen=True, slots=True)
class Completion:
    """One word that may be written from offset `start` up to the cursor.

    `detail` is one line about it, `text` its description.
    """

    label: str
    kind: CompletionKind
    start: int
    insert: str
    detail: str = ""
    text: str = ""
    is_deprecated: bool = False


def complete(document: Document, offset: int) -> list[Completion]:
    """Return what may be written at `offset`, in schema order."""
    builtins.register_builtins()
    context = find_cursor_context(document.text, offset, document.format)
    if context is None or document.is_resolved:
        return []
    if context.kind == "reference":
        return list(iter_references(document, context))
    if context.path[:1] == (EXTENDS,):
        return list(iter_files(document, context))
    if context.path[:1] == (PLUGINS,):
        return [Completion(name, "value", context.start, name) for name in get_installed_plugins()]
    if context.kind == "value":
        return list(iter_accepted_words(document, context))
    return list(iter_keys(document, context))


def find_holder(document: Document, context: CursorContext) -> type[Config] | None:
    """Return the config class of the mapping around the cursor.

    A `name` beside the cursor decides its component, even if the text cannot be parsed.
    """
    path = strip_stage(context.path)
    model = get_recipe_class()
    if not path:
        return model
    data = document.data
    annotation = find_annotation(model, data, path)
    if is_slot(annotation) and "name" in context.siblings:
        names = registry.get_choice_names(annotation)
        name = context.siblings["name"]
        return registry.load_choice(annotation, name) if name in names else annotation
    return find_config_class(model, data, path)


def iter_keys(document: Document, context: CursorContext) -> Iterator[Completion]:
    """Yield the keys that are not written yet, required ones first."""
    if can_be_bare_name(document, context):
        yield from iter_accepted_words(document, context)
    holder = find_holder(document, context)
    if holder is None:
        return
    texts = get_field_docs(holder)
    fields = sorted(holder.model_fields.items(), key=lambda field: not field[1].is_required())
    for name, field in fields:
        inner = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
        has_table = is_section_type(inner) or is_slot(inner)
        if name in context.siblings or (context.kind == "table" and not has_table):
            continue
        found = describe_field(name, field, texts.get(name, ""))
        yield Completion(
            name,
            "section" if has_table else "key",
            context.start,
            name + get_key_end(document, context, field.annotation),
            ", ".join(filter(None, [found.type, found.default_text])),
            found.text,
        )
    yield from iter_file_keys(document, context)


def iter_file_keys(document: Document, context: CursorContext) -> Iterator[Completion]:
    """Yield the keys of a file, or of a stage, that are no fields of a run."""
    keys: dict[str, str] = {}
    if context.kind == "key" and not context.path:
        keys = FILE_ONLY_KEYS | {STAGES: "Runs that follow each other, merged over this recipe."}
    elif context.kind == "key" and len(context.path) == 2 and context.path[0] == STAGES:
        keys = {ID: "Name of the stage."}
    for name, text in keys.items():
        if name.isidentifier() and name not in context.siblings:
            end = get_key_end(document, context, str)
            yield Completion(name, "key", context.start, name + end, "", text)


def get_key_end(document: Document, context: CursorContext, annotation: Any) -> str:
    """Return what follows a key: `: `, or `:` and the beginning of a section's first line."""
    if context.kind == "table":
        return ""
    if document.format == "toml":
        return " = "
    line_start = document.text.rfind("\n", 0, context.start) + 1
    before = document.text[line_start : context.start]
    if is_section_type(annotation) and not before.strip():
        return f":\n{before}  "
    return ": "


def can_be_bare_name(document: Document, context: CursorContext) -> bool:
    """Return whether the cursor is in an item of a list whose items may be bare names."""
    path = strip_stage(context.path)
    return (
        bool(path)
        and isinstance(path[-1], int)
        and not context.siblings
        and is_slot(find_annotation(get_recipe_class(), document.data, path))
    )


def iter_accepted_words(document: Document, context: CursorContext) -> Iterator[Completion]:
    """Yield the words that a field accepts."""
    path = strip_stage(context.path)
    annotation = find_value_annotation(document, path, context)
    if annotation is None:
        return
    inner = find_item_type(annotation) or unwrap_annotation(annotation)
    quote = '"' if document.format == "toml" and not context.word.startswith(('"', "'")) else ""
    if is_slot(inner):
        for name, choice in registry.load_choices(inner).items():
            yield Completion(
                name,
                "component",
                context.start,
                f"{quote}{name}{quote}",
                f"{inner.slot} '{name}'",
                get_class_summary(choice),
            )
    words = [str(format_readable_scalar(value)) for value in get_literal_values(annotation)]
    for word in words:
        yield Completion(word, "value", context.start, f"{quote}{word}{quote}")
    if inner is bool:
        for word in ("true", "false"):
            yield Completion(word, "value", context.start, word)
    if accepts_auto(annotation) and "auto" not in words:
        yield Completion("auto", "value", context.start, f"{quote}auto{quote}")
    if accepts_null(annotation) and document.format == "yaml":
        yield Completion("null", "value", context.start, "null")


def find_value_annotation(document: Document, path: DataPath, context: CursorContext) -> Any:
    """Return the type of the field at `path`; `name` is that of the slot around it."""
    model, data = get_recipe_class(), document.data
    if path[-1:] == ("name",):
        slot = find_annotation(model, data, path[:-1])
        if is_slot(slot):
            return slot
    if path and isinstance(path[-1], int):
        return find_annotation(model, data, path)
    holder = find_holder(document, CursorContext("key", context.path[:-1], "", 0, context.siblings))
    if holder is not None and path and isinstance(path[-1], str):
        field = holder.model_fields.get(path[-1])
    else:
        field = find_field_info(model, data, path)
    return None if field is None else field.annotation


def iter_references(document: Document, context: CursorContext) -> Iterator[Completion]:
    """Yield what `${...}` may refer to: the settings of the run, and environment variables."""
    yield Completion(
        ENVIRONMENT_PREFIX,
        "reference",
        context.start,
        ENVIRONMENT_PREFIX,
        "environment variable",
        "${env:NAME} or ${env:NAME,default}",
    )
    for path, value in list_data_leaves(document.data):
        if not isinstance(value, dict | list) and path[:1] != (EXTENDS,):
            label = format_path(path)
            yield Completion(label, "reference", context.start, label, str(value))


def iter_files(document: Document, context: CursorContext) -> Iterator[Completion]:
    """Yield the files that a recipe may extend: those beside it and below, and shipped ones."""
    folder = get_folder(document)
    names = [
        *(find_recipe_files(folder)),
        *(f"{SHIPPED}:{name}" for name in find_recipe_files(get_shipped_folder())),
    ]
    quote = '"' if document.format == "toml" and not context.word.startswith(('"', "'")) else ""
    for name in names:
        if str(folder / name) != document.path:
            yield Completion(name, "file", context.start, f"{quote}{name}{quote}")


def find_recipe_files(folder: Path) -> list[str]:
    """Return the recipe files in a folder and its subfolders, relative to it."""
    found = []
    for pattern in ("*", "*/*"):
        for file in sorted(folder.glob(pattern)):
            if file.suffix.lower() in FORMATS and not file.name.startswith("."):
                found.append(file.relative_to(folder).as_posix())
            if len(found) >= MAX_FILES:
                return found
    return found
