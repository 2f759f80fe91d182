"""Validation of a tree against a config class: all problems at once, each at its origin."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from titanrun.config.base import Config
from titanrun.config.compose import EXTENDS, is_absent
from titanrun.config.conflict import CONFLICT, get_related_uses, order_locations
from titanrun.config.control_characters import escape_line
from titanrun.config.diagnostics import format_short_value
from titanrun.config.error_messages import (
    NO_VALUE,
    describe_value_error,
    singularize_slot,
)
from titanrun.config.fields import find_field_metadata, is_secret
from titanrun.config.key_suggestions import (
    NAME,
    KeySuggestions,
    Synonyms,
    find_key_origin,
    format_spaced_key,
    is_empty,
)
from titanrun.config.limits import MAX_PROBLEMS
from titanrun.config.misspelled_names import replace_misspelled_names
from titanrun.config.number_messages import ErrorMessage
from titanrun.config.problems import DataPath, Fix, Origin, Problem
from titanrun.config.redaction import is_secret_key
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list, is_certain_spelling
from titanrun.config.text_edits import (
    build_quote_fix,
    build_unquote_fix,
    build_word_fix,
    find_number_text,
)
from titanrun.config.tree import (
    Node,
    find_node,
    format_path,
    get_nearest_node,
    iter_nodes,
    to_plain_data,
)
from titanrun.config.type_introspection import (
    find_annotation,
    find_config_class,
    find_field_info,
    get_literal_values,
    is_slot,
)
from titanrun.config.unwrapped_components import merge_unwrapped_components
from titanrun.config.value_hints import (
    adapt_to_override,
    find_list_hint,
    find_path_hint,
    find_value_hint,
    is_script,
)

C = TypeVar("C", bound=Config)
KNOWN_KEYS = "known keys: "
"""Start of the hint for an unknown key that resembles no other."""
TOML_NULL_HINT = (
    'TOML has no null, so the text "null" represents it, but this field does not accept null'
)


@dataclass(frozen=True, slots=True)
class TreeValidationResult(Generic[C]):
    """The validated config (None if there are errors) and the problems."""

    config: C | None
    problems: tuple[Problem, ...]


def validate_tree(
    model: type[C],
    root: Node,
    *,
    synonyms: Synonyms | None = None,
    exact_synonyms: Collection[str] = frozenset(),
) -> TreeValidationResult[C]:
    """Validate the tree against `model`.

    `synonyms` maps a word to the keys it may mean. Words in `exact_synonyms` may be replaced by
    their synonym automatically.
    """
    data = to_plain_data(root)
    try:
        return TreeValidationResult(model.model_validate(data), ())
    except ValidationError as error:
        errors = error.errors(include_url=False)
    checker = TreeValidator(KeySuggestions(model, root, data, synonyms or {}, exact_synonyms))
    problems = [checker.to_problem(item) for item in errors[:MAX_PROBLEMS]]
    if len(errors) > MAX_PROBLEMS:
        message = f"{len(errors) - MAX_PROBLEMS} more problems are not shown"
        problems.append(
            Problem("limit", message, origin=root.origin, hint="fix the shown problems first")
        )
    problems += find_problems_below_misspelled(checker, problems)
    problems = merge_unwrapped_components(model, root, data, problems)
    return TreeValidationResult(None, tuple(drop_follow_up_problems(problems)))


def find_problems_below_misspelled(
    checker: "TreeValidator", problems: Sequence[Problem]
) -> list[Problem]:
    """Return the problems within components and sections whose misspelled names are certain.

    What one lacks is not among them: the suggestion may still be wrong.
    """
    keys = checker.keys
    root, places = replace_misspelled_names(keys.model, keys.root, keys.data, problems)
    if not places:
        return []
    data = to_plain_data(root)
    try:
        keys.model.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_PROBLEMS]
    else:
        return []
    renamed = TreeValidator(replace(keys, root=root, data=data))
    found = [
        renamed.to_problem(item)
        for item in errors
        if item["type"] != "missing"
        and any(tuple(item["loc"])[: len(place)] == place for place in places)
    ]
    return [problem for problem in found if problem.path not in places]


def drop_follow_up_problems(problems: list[Problem]) -> list[Problem]:
    """Drop missing-key problems at or below the key that a misspelled one means."""
    meant = {
        (*problem.path[:-1], problem.suggestion)
        for problem in problems
        if problem.code == "unknown-key" and problem.suggestion
    }
    if (EXTENDS,) in meant:  # the keys from the extended file are unknown
        return [problem for problem in problems if problem.code != "missing-key"]
    return [
        problem
        for problem in problems
        if problem.code != "missing-key"
        or not any(problem.path[: len(path)] == path for path in meant)
    ]


class TreeValidator:
    """Converter of pydantic's errors about one tree to problems."""

    def __init__(self, keys: KeySuggestions) -> None:
        self.keys = keys
        self.model, self.root, self.data = keys.model, keys.root, keys.data

    def to_problem(self, error: Any) -> Problem:
        """Convert one of pydantic's errors to a problem."""
        path: DataPath = tuple(error["loc"])
        if error["type"] == "component_name_missing" and (
            key := self.keys.find_misspelled_name(path)
        ):
            return self.build_misspelled_name_problem(path, key)
        if error["type"] == CONFLICT:
            return self.build_conflict_problem(path, error["ctx"])
        if error["type"] == "extra_forbidden":
            found = self.build_unknown_key_problem(path)
        else:
            found = (
                self.build_missing_key_problem(path)
                if error["type"] == "missing"
                else self.build_bad_value_problem(path, error)
            )
        return replace(found, related=get_related_uses(self.root, found.path))

    def build_unknown_key_problem(self, path: DataPath) -> Problem:
        """Build the problem of a key that the mapping does not have."""
        key = str(path[-1])
        node = find_node(self.root, path)
        suggestion, elsewhere = self.keys.suggest_key(path)
        meant = (
            find_field_info(self.model, self.data, (*path[:-1], suggestion)) if suggestion else None
        )
        may_be_secret = is_secret_key(key) or (meant is not None and is_secret(meant))
        if may_be_secret and node is not None:
            hide_from_messages(node)
        given = self.keys.find_given_line(path, suggestion) if suggestion else None
        also = f", which is given too, in line {given}" if given else ""
        hint = f"did you mean '{suggestion}'{also}?" if suggestion else elsewhere
        if is_secret_key(key) and (meant is None or not is_secret(meant)):
            suggestion = None
            hint = f"a recipe holds no secrets: set {key.upper()} where the run starts"
        if (
            hint is None
            and (holder := find_config_class(self.model, self.data, path[:-1])) is not None
        ):
            known = self.keys.list_known_keys(holder)
            hint = KNOWN_KEYS + format_word_list(known, conjunction="and", max_words=len(known))
        message = f"unknown key '{escape_line(key)}' in {self.format_location(path[:-1])}"
        fix = (
            build_word_fix(find_key_origin(node), key, suggestion)
            if suggestion and self.keys.can_rename(path, suggestion)
            else None
        )
        return Problem(
            "unknown-key",
            message,
            path,
            find_key_origin(node),
            hint=hint,
            suggestion=suggestion,
            got=key,
            fix=fix,
        )

    def build_misspelled_name_problem(self, path: DataPath, key: str) -> Problem:
        """Build the problem of a misspelled `name`.

        Without it nothing else in the component can be validated.
        """
        node = find_node(self.root, (*path, key))
        fix = (
            build_word_fix(find_key_origin(node), key, NAME)
            if is_certain_spelling(key, NAME, [NAME])
            else None
        )
        message = f"unknown key '{key}' in {self.format_location(path)}"
        return Problem(
            "unknown-key",
            message,
            (*path, key),
            find_key_origin(node),
            hint=format_spaced_key(key, [NAME]) or f"did you mean '{NAME}'?",
            suggestion=NAME,
            got=key,
            fix=fix,
        )

    def build_missing_key_problem(self, path: DataPath) -> Problem:
        """Build the problem of a missing required key, shown at its parent's key."""
        parent, _ = get_nearest_node(self.root, path[:-1])
        location = f" in {self.format_location(path[:-1])}" if path[:-1] else ""
        message = f"missing required key '{path[-1]}'{location}"
        field = find_field_info(self.model, self.data, path)
        only = get_literal_values(field.annotation) if field is not None else ()
        value = f": {to_flow_yaml(only[0])}" if len(only) == 1 else ""
        return Problem(
            "missing-key",
            message,
            path,
            parent.key or parent.origin,
            hint=f"add {format_path(path)}{value}",
        )

    def build_bad_value_problem(self, path: DataPath, error: Any) -> Problem:
        """Build the problem of a wrong type, a value out of range, or an unregistered name."""
        node, _ = get_nearest_node(self.root, path)
        empty = is_empty(node)
        origin = node.origin
        if error["type"].startswith(("unknown_name", "component_name")) and isinstance(
            node.value, dict
        ):
            name = node.value.get("name")
            origin = name.origin if name is not None else get_first_key_origin(node)
            path = (*path, "name")
        got = None if empty or error["type"] == "secret" else error["input"]
        if error["type"] == "secret":
            hide_from_messages(node)
        capability = self.find_missing_capability(path)
        if capability is not None and not empty:
            message = (
                f"{format_path(path)} requires {capability}, which this version does not support"
            )
            return Problem("not-built", message, path, origin, hint="leave it out", got=got)
        wording = describe_value_error(
            error["type"], error.get("ctx") or {}, NO_VALUE if empty else error["input"]
        )
        field = find_field_info(self.model, self.data, path)
        if wording.expected == "a list" and field is not None:
            wording = replace(wording, hint=find_list_hint(field, got) or wording.hint)
        wording = show_number_as_written(wording, node)
        text = got.get(NAME) if isinstance(got, dict) else got
        if isinstance(text, str):
            wording = replace(wording, hint=self.find_text_hint(path, text) or wording.hint)
        if node.via == "override":
            wording = adapt_to_override(wording, node, path, field)
        advised = find_value_hint(field, error["input"], is_empty=empty)
        null_text = (
            node.value is None and not empty and node.origin.source.name.lower().endswith(".toml")
        )
        return Problem(
            wording.code,
            wording.message,
            path,
            origin,
            hint=wording.hint or (TOML_NULL_HINT if null_text else advised),
            suggestion=wording.suggestion,
            got=got,
            expected=wording.expected,
            fix=build_value_fix(wording, node, origin, got) if wording.is_certain else None,
        )

    def find_text_hint(self, path: DataPath, got: str) -> str | None:
        """Return a hint for a text in the place of a mapping: a path, or a key and its value."""
        place = path[:-1] if path[-1:] == (NAME,) and is_script(got) else path
        slot: Any = find_annotation(self.model, self.data, place)
        if is_slot(slot) and ("/" in got or is_script(got) or not is_absent(got)):
            found = find_path_hint(slot, got)
            if found is not None:
                return found
        return format_spaced_key(got, self.keys.collect_keys_inside(path)) if ":" in got else None

    def build_conflict_problem(self, path: DataPath, context: Mapping[str, Any]) -> Problem:
        """Build the problem of contradicting fields in one mapping.

        It is a not-built problem instead if the field to change requires a missing capability.
        """
        place = order_locations(self.root, [(*path, name) for name in context["fields"]])
        capability = self.find_missing_capability(place.path)
        if capability is not None:
            message = (
                f"{format_path(place.path)} requires {capability}, "
                "which this version does not support"
            )
            return Problem("not-built", message, place.path, place.origin, hint="leave it out")
        return Problem(
            "conflict",
            context["message"],
            place.path,
            place.origin,
            hint=context["help"],
            related=place.related,
        )

    def find_missing_capability(self, path: DataPath) -> str | None:
        """Return the missing capability that the field at `path` requires, or None."""
        field = find_field_info(self.model, self.data, path)
        setting = find_field_metadata(field) if field is not None else None
        return None if setting is None else setting.not_built

    def format_location(self, path: DataPath) -> str:
        """Format a mapping for messages: `section 'training'`, `converter 'lora'`, `the recipe`."""
        if not path:
            return "the recipe"
        annotation = find_annotation(self.model, self.data, path)
        if is_slot(annotation):
            choice = find_config_class(self.model, self.data, path)
            return (
                f"{singularize_slot(annotation.slot)} '{choice.model_fields['name'].default}'"
                if choice
                else singularize_slot(annotation.slot)
            )
        return f"section '{format_path(path)}'"


def hide_from_messages(node: Node) -> None:
    """Hide the text of a node, and of all nodes below it, from all messages."""
    for _, inner in iter_nodes(node):
        inner.origin.source.hidden_origins.append(inner.origin)


def show_number_as_written(wording: ErrorMessage, node: Node) -> ErrorMessage:
    """Return the message with a number, or the only one of a list, as its author wrote it."""
    alone = isinstance(node.value, list) and len(node.value) == 1
    inner = node.value[0] if isinstance(node.value, list) and alone else node
    written = find_number_text(inner)
    if written is None or wording.code != "wrong-type":
        return wording
    shown = format_short_value(inner.value)
    hint = None if wording.hint is None else wording.hint.replace(shown, written)
    return replace(wording, message=wording.message.replace(shown, written), hint=hint)


def build_value_fix(wording: ErrorMessage, node: Node, origin: Origin, got: Any) -> Fix | None:
    """Build the edit for a certain suggestion.

    Return None for values obtained through an alias or a reference.
    """
    if node.alias_origins or node.via != "file":
        return None
    if wording.suggestion is None:
        return build_quote_fix(origin)
    if wording.code == "unknown-name" or not isinstance(got, str | int):
        name = got.get("name") if isinstance(got, dict) else got
        return build_word_fix(origin, str(name), wording.suggestion)
    return build_unquote_fix(origin, str(got), wording.suggestion) or build_word_fix(
        origin, str(got), wording.suggestion
    )


def get_first_key_origin(node: Node) -> Origin:
    """Return the origin of a mapping's first key, where a missing name is shown."""
    children = list(node.value.values()) if isinstance(node.value, dict) else []
    return (children[0].key or children[0].origin) if children else node.origin
