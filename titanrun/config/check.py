"""Validates a tree against a config class: every problem at once, each at its origin."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from titanrun.config import registry
from titanrun.config.advice import advice, path_advice
from titanrun.config.base import Config
from titanrun.config.compose import EXTENDS
from titanrun.config.conflict import CONFLICT, place_together, uses
from titanrun.config.fields import is_secret, setting_of
from titanrun.config.fixes import quoted, rewritten, unquoted
from titanrun.config.limits import MAX_PROBLEMS
from titanrun.config.problems import DataPath, Fix, Origin, Problem
from titanrun.config.shape import (
    annotation_at,
    bare,
    chosen,
    config_at,
    field_at,
    is_slot,
    item_type,
)
from titanrun.config.suggest import closest, is_respelling, letters, listing
from titanrun.config.tree import Node, find, nearest, path_text, plain, walk
from titanrun.config.wording import NO_VALUE, Wording, singular, word_value_error

C = TypeVar("C", bound=Config)
NAME = "name"
TOML_NULL = 'TOML has no null, so the text "null" stands for it, and this field takes none'
Synonyms = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Checked(Generic[C]):
    """The config, or None where there are errors, and the problems."""

    config: C | None
    problems: tuple[Problem, ...]


def check(
    model: type[C],
    root: Node,
    *,
    synonyms: Synonyms | None = None,
    same_meaning: Collection[str] = frozenset(),
) -> Checked[C]:
    """Validate the tree against `model`.

    `synonyms` maps a word to the keys it may mean; what is in `same_meaning` too may be replaced by its synonym without asking.
    """
    data = plain(root)
    try:
        return Checked(model.model_validate(data), ())
    except ValidationError as error:
        errors = error.errors(include_url=False)
    checker = Checker(model, root, data, synonyms or {}, same_meaning)
    problems = [checker.problem(item) for item in errors[:MAX_PROBLEMS]]
    if len(errors) > MAX_PROBLEMS:
        message = f"{len(errors) - MAX_PROBLEMS} more mistakes are not shown"
        problems.append(
            Problem("limit", message, origin=root.origin, help="correct those that are shown first")
        )
    return Checked(None, tuple(without_follow_ups(problems)))


def without_follow_ups(problems: list[Problem]) -> list[Problem]:
    """A key that is misspelt is not also missing."""
    meant = {
        (*problem.path[:-1], problem.suggestion)
        for problem in problems
        if problem.code == "unknown-key" and problem.suggestion
    }
    if (EXTENDS,) in meant:  # what it would have brought is not known
        return [problem for problem in problems if problem.code != "missing-key"]
    return [
        problem
        for problem in problems
        if problem.code != "missing-key" or problem.path not in meant
    ]


class Checker:
    """Turns pydantic's errors about one tree into problems."""

    def __init__(
        self,
        model: type[Config],
        root: Node,
        data: Any,
        synonyms: Synonyms,
        same_meaning: Collection[str],
    ) -> None:
        self.model = model
        self.root = root
        self.data = data
        self.synonyms = synonyms
        self.same_meaning = same_meaning

    def problem(self, error: Any) -> Problem:
        """One of pydantic's errors as a problem."""
        path: DataPath = tuple(error["loc"])
        if error["type"] == "component_name_missing" and (key := self.misspelt_name(path)):
            return self.misspelt_name_problem(path, key)
        if error["type"] == CONFLICT:
            return self.conflict(path, error["ctx"])
        if error["type"] == "extra_forbidden":
            found = self.unknown_key(path)
        else:
            found = (
                self.missing_key(path)
                if error["type"] == "missing"
                else self.bad_value(path, error)
            )
        return replace(found, related=uses(self.root, found.path))

    def unknown_key(self, path: DataPath) -> Problem:
        """A key that the mapping does not have."""
        key = str(path[-1])
        node = find(self.root, path)
        suggestion, elsewhere = self.meant_key(path)
        meant = field_at(self.model, self.data, (*path[:-1], suggestion)) if suggestion else None
        if meant is not None and is_secret(meant) and node is not None:
            hide(node)
        help = f"did you mean '{suggestion}'?" if suggestion else elsewhere
        if help is None and (holder := config_at(self.model, self.data, path[:-1])) is not None:
            help = f"known keys: {listing(self.known_keys(holder), last='and')}"
        message = f"unknown key '{key}' in {self.place(path[:-1])}"
        fix = (
            rewritten(key_origin(node), key, suggestion)
            if suggestion and self.may_rename(path, suggestion)
            else None
        )
        return Problem(
            "unknown-key",
            message,
            path,
            key_origin(node),
            help=help,
            suggestion=suggestion,
            got=key,
            fix=fix,
        )

    def may_rename(self, path: DataPath, meant: str) -> bool:
        """Whether a key certainly stands for `meant`, which neither its file nor another misspelt key gives as well."""
        parent, holder = find(self.root, path[:-1]), config_at(self.model, self.data, path[:-1])
        if parent is None or holder is None or not isinstance(parent.value, dict):
            return False
        origin = key_origin(parent.value[str(path[-1])])
        rivals = [
            name
            for name, node in parent.value.items()
            if (mark := key_origin(node)) and origin and mark.source is origin.source
        ]
        claims = [name for name in rivals if name == meant or self.stands_for(name, meant, holder)]
        return claims == [path[-1]]

    def stands_for(self, key: str, meant: str, holder: type[Config]) -> bool:
        """Whether `key` is another spelling of `meant`, or another word for the very same thing."""
        word = key.lower().replace("-", "_")
        same = word in self.same_meaning and self.synonyms.get(word) == (meant,)
        return key not in holder.model_fields and (
            same or is_respelling(key, meant, self.known_keys(holder))
        )

    def known_keys(self, holder: type[Config]) -> list[str]:
        """What may be written in a mapping; at the top of a file also what is gone once files are joined."""
        return [*holder.model_fields, *([EXTENDS] if holder is self.model else [])]

    def misspelt_name(self, path: DataPath) -> str | None:
        """The key of a component without a name that probably was to be `name`."""
        node = find(self.root, path)
        keys = list(node.value) if node is not None and isinstance(node.value, dict) else []
        known = {
            key
            for choice in registry.choices(annotation_at(self.model, self.data, path)).values()
            for key in choice.model_fields
        }
        near = [
            key
            for key in keys
            if key not in known
            and (closest(key, [NAME]) or self.synonyms.get(key.lower()) == (NAME,))
        ]
        return near[0] if len(near) == 1 else None

    def misspelt_name_problem(self, path: DataPath, key: str) -> Problem:
        """A misspelt `name`, without which nothing else in the component can be judged."""
        node = find(self.root, (*path, key))
        fix = rewritten(key_origin(node), key, NAME) if is_respelling(key, NAME, [NAME]) else None
        message = f"unknown key '{key}' in {self.place(path)}"
        return Problem(
            "unknown-key",
            message,
            (*path, key),
            key_origin(node),
            help=f"did you mean '{NAME}'?",
            suggestion=NAME,
            got=key,
            fix=fix,
        )

    def missing_key(self, path: DataPath) -> Problem:
        """A required key that was not written: shown at its parent's key."""
        parent, _ = nearest(self.root, path[:-1])
        message = f"{self.place(path[:-1])} needs '{path[-1]}'"
        return Problem(
            "missing-key", message, path, parent.key or parent.origin, help=f"add {path_text(path)}"
        )

    def bad_value(self, path: DataPath, error: Any) -> Problem:
        """A value of a wrong type, out of range, or a name nobody registered."""
        node, _ = nearest(self.root, path)
        empty = node.value is None and node.key is not None and node.origin == node.key
        origin = node.origin
        if error["type"].startswith(("unknown_name", "component_name")) and isinstance(
            node.value, dict
        ):
            name = node.value.get("name")
            origin = name.origin if name is not None else first_key(node)
            path = (*path, "name")
        got = None if empty or error["type"] == "secret" else error["input"]
        if error["type"] == "secret":
            hide(node)
        capability = self.not_built(path)
        if capability is not None and not empty:
            message = f"{path_text(path)} asks for {capability}, which this version does not have"
            return Problem("not-built", message, path, origin, help="leave it out", got=got)
        wording = word_value_error(
            error["type"], error.get("ctx") or {}, NO_VALUE if empty else error["input"]
        )
        if (
            isinstance(got, str)
            and "/" in got
            and is_slot(slot := annotation_at(self.model, self.data, path))
        ):
            wording = replace(wording, help=path_advice(slot, got) or wording.help)
        advised = advice(field_at(self.model, self.data, path), error["input"], is_empty=empty)
        null_text = (
            node.value is None and not empty and node.origin.source.name.lower().endswith(".toml")
        )
        return Problem(
            wording.code,
            wording.message,
            path,
            origin,
            help=wording.help or (TOML_NULL if null_text else advised),
            suggestion=wording.suggestion,
            got=got,
            expected=wording.expected,
            fix=value_fix(wording, node, origin, got) if wording.certain else None,
        )

    def conflict(self, path: DataPath, context: Mapping[str, Any]) -> Problem:
        """Fields of one mapping that contradict each other, unless the one to change asks for what is not built."""
        place = place_together(self.root, [(*path, name) for name in context["fields"]])
        capability = self.not_built(place.path)
        if capability is not None:
            message = (
                f"{path_text(place.path)} asks for {capability}, which this version does not have"
            )
            return Problem("not-built", message, place.path, place.origin, help="leave it out")
        return Problem(
            "conflict",
            context["message"],
            place.path,
            place.origin,
            help=context["help"],
            related=place.related,
        )

    def not_built(self, path: DataPath) -> str | None:
        """The capability that the field at `path` is missing, if it is."""
        field = field_at(self.model, self.data, path)
        setting = setting_of(field) if field is not None else None
        return None if setting is None else setting.not_built

    def place(self, path: DataPath) -> str:
        """A mapping as messages call it: `section 'training'`, `converter 'lora'`, `the recipe`."""
        if not path:
            return "the recipe"
        annotation = annotation_at(self.model, self.data, path)
        if is_slot(annotation):
            choice = config_at(self.model, self.data, path)
            return (
                f"{singular(annotation.slot)} '{choice.model_fields['name'].default}'"
                if choice
                else singular(annotation.slot)
            )
        return f"section '{path_text(path)}'"

    def meant_key(self, path: DataPath) -> tuple[str | None, str | None]:
        """The key of the same mapping that was meant, else a sentence about where the key belongs."""
        key = str(path[-1])
        holder = config_at(self.model, self.data, path[:-1])
        parent = find(self.root, path[:-1])
        if holder is None or parent is None or not isinstance(parent.value, dict):
            return None, None
        respelt = next(
            (name for name in self.known_keys(holder) if letters(name) == letters(key)), None
        )
        if respelt is not None:
            return respelt, None
        steps = tuple(key.split("."))
        if len(steps) > 1 and field_at(self.model, self.data, (*path[:-1], *steps)) is not None:
            return (
                None,
                f"write {steps[-1]} below '{path_text((*path[:-1], *steps[:-1]))}': dots are for the command line",
            )
        above = self.empty_above(path, parent)
        if above is not None:
            return (
                None,
                f"indent it: it belongs to '{above}' in line {key_line(parent.value[above])}",
            )
        present = set(parent.value)
        for synonym in self.synonyms.get(key.lower().replace("-", "_"), ()):
            if synonym in holder.model_fields:
                return synonym, None
        suggestion = closest(key, self.known_keys(holder), present=present)
        exact = self.elsewhere(key, path)
        return (None, exact) if exact else (suggestion, None)

    def empty_above(self, path: DataPath, parent: Node) -> str | None:
        """The key above that holds nothing, and could hold what is unknown here."""
        assert isinstance(parent.value, dict)
        key, mark, found = str(path[-1]), key_origin(parent.value[str(path[-1])]), None
        for name, node in parent.value.items():
            if name == key:
                break
            is_beside = mark is not None and node.key is not None and node.key.source is mark.source
            if (
                node.value is None
                and node.origin == node.key
                and is_beside
                and key in self.keys_inside((*path[:-1], name))
            ):
                found = name
        return found

    def keys_inside(self, path: DataPath) -> set[str]:
        """The keys that a section, or any component of a slot, may hold at `path`."""
        annotation = annotation_at(self.model, self.data, path)
        if is_slot(annotation):
            return {
                key
                for choice in registry.choices(annotation).values()
                for key in choice.model_fields
            }
        return (
            set(annotation.model_fields)
            if isinstance(annotation, type) and issubclass(annotation, Config)
            else set()
        )

    def elsewhere(self, key: str, path: DataPath) -> str | None:
        """Where else the schema has this very key, or a synonym of it."""
        wanted = (key, *self.synonyms.get(key.lower().replace("-", "_"), ()))
        place = next(
            (place for word in wanted for place in keys_named(self.model, self.data, word)), None
        )
        if place is not None and place[-1] != key:
            return f"'{key}' is {path_text(place)} here"
        if place is not None:
            return (
                f"'{key}' belongs in {path_text(place[:-1])}"
                if len(place) > 1
                else f"'{key}' belongs at the top level"
            )
        annotation: Any = annotation_at(self.model, self.data, path[:-1]) if len(path) > 1 else None
        if is_slot(annotation):
            holders = [
                name
                for name, choice in registry.choices(annotation).items()
                if key in choice.model_fields
            ]
            if holders:
                return f"a key of {singular(annotation.slot)} {listing(map(repr, holders))}"
        return None


def keys_named(model: type[Config], data: Any, key: str, path: DataPath = ()) -> Iterator[DataPath]:
    """Paths of all fields called `key`, in the choices that `data` names."""
    for name, field in model.model_fields.items():
        if name == key:
            yield (*path, name)
        annotation = bare(field.annotation)
        value = data.get(name) if isinstance(data, dict) else None
        inner = chosen(annotation, value) if is_slot(annotation) else annotation
        if (
            isinstance(inner, type)
            and issubclass(inner, Config)
            and not issubclass(inner, model)
            and item_type(field.annotation) is None
        ):
            yield from keys_named(inner, value, key, (*path, name))


def hide(node: Node) -> None:
    """From now on no message shows what stands at a node or below it."""
    for _, inner in walk(node):
        inner.origin.source.hidden.append(inner.origin)


def value_fix(wording: Wording, node: Node, origin: Origin, got: Any) -> Fix | None:
    """The edit that a certain suggestion makes; None for values that came through an alias or a reference."""
    if node.also or node.via != "file":
        return None
    if wording.suggestion is None:
        return quoted(origin)
    if wording.code == "unknown-name" or not isinstance(got, str | int):
        name = got.get("name") if isinstance(got, dict) else got
        return rewritten(origin, str(name), wording.suggestion)
    return unquoted(origin, str(got), wording.suggestion) or rewritten(
        origin, str(got), wording.suggestion
    )


def key_origin(node: Node | None) -> Origin | None:
    """The mark of the key that leads to a node, else of its value."""
    return None if node is None else node.key or node.origin


def key_line(node: Node) -> int:
    """The line of a node's key."""
    return (node.key or node.origin).line


def first_key(node: Node) -> Origin:
    """The mark of a mapping's first key, where a missing name is shown."""
    children = list(node.value.values()) if isinstance(node.value, dict) else []
    return (children[0].key or children[0].origin) if children else node.origin
