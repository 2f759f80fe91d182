"""Suggestions for unknown keys: the intended key, or the section in which the key belongs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.compose import EXTENDS
from titanrun.config.error_messages import singularize_slot
from titanrun.config.list_additions import ADDITION_SUFFIX, find_added_key
from titanrun.config.problems import DataPath, Origin
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import (
    find_closest,
    format_word_list,
    is_certain_typo,
    is_respelling,
    normalize_spelling,
)
from titanrun.config.tree import Node, find_node, format_path
from titanrun.config.type_introspection import (
    find_annotation,
    find_choice_class,
    find_config_class,
    find_field_info,
    find_item_type,
    find_value,
    is_slot,
    unwrap_annotation,
)

NAME = "name"
Synonyms = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class KeySuggestions:
    """Suggestions for the keys of one tree, by spelling, synonyms and places in the schema.

    `synonyms` maps a word to the keys it may mean. Words in `exact_synonyms` certainly mean their
    synonym.
    """

    model: type[Config]
    root: Node
    data: Any
    synonyms: Synonyms
    exact_synonyms: Collection[str]

    def can_rename(self, path: DataPath, meant: str) -> bool:
        """Return whether a key certainly means `meant`, and `meant` is not given in other ways.

        Neither its file nor another misspelled key may give it as well.
        """
        parent, holder = (
            find_node(self.root, path[:-1]),
            find_config_class(self.model, self.data, path[:-1]),
        )
        if parent is None or holder is None or not isinstance(parent.value, dict):
            return False
        origin = find_key_origin(parent.value[str(path[-1])])
        rivals = [
            name
            for name, node in parent.value.items()
            if (mark := find_key_origin(node)) and origin and mark.source is origin.source
        ]
        claims = [name for name in rivals if name == meant or self.is_same_key(name, meant, holder)]
        return claims == [path[-1]]

    def find_given_line(self, path: DataPath, meant: str) -> int | None:
        """Return the line where the file of an unknown key also has the key that it means."""
        parent = find_node(self.root, path[:-1])
        if parent is None or not isinstance(parent.value, dict):
            return None
        origin, given = (find_key_origin(parent.value.get(str(key))) for key in (path[-1], meant))
        return given.line if origin and given and given.source is origin.source else None

    def is_same_key(self, key: str, meant: str, holder: type[Config]) -> bool:
        """Return whether `key` is another spelling, an exact synonym or a typo of `meant`."""
        word, known = key.lower().replace("-", "_"), self.list_known_keys(holder)
        same = word in self.exact_synonyms and self.synonyms.get(word) == (meant,)
        return key not in holder.model_fields and (
            same
            or is_respelling(key, meant, known)
            or (is_certain_typo(key, meant, known) and not self.is_known_word(word))
        )

    def is_known_word(self, word: str) -> bool:
        """Return whether a word is a synonym, or a key anywhere in the schema."""
        return word in self.synonyms or word in collect_field_names(self.model)

    def list_known_keys(self, holder: type[Config]) -> list[str]:
        """Return the accepted keys of a mapping.

        At the top of a file this includes keys that are removed when files are composed.
        """
        return [*holder.model_fields, *([EXTENDS] if holder is self.model else [])]

    def find_misspelled_name(self, path: DataPath) -> str | None:
        """Return the key that is probably a misspelled `name`, for a component without a name."""
        node = find_node(self.root, path)
        keys = list(node.value) if node is not None and isinstance(node.value, dict) else []
        known = {
            key
            for choice in registry.load_choices(
                find_annotation(self.model, self.data, path)
            ).values()
            for key in choice.model_fields
        }
        near = [
            key
            for key in keys
            if key not in known
            and (
                find_closest(key, [NAME])
                or self.synonyms.get(key.lower()) == (NAME,)
                or format_spaced_key(key, [NAME])
            )
        ]
        return near[0] if len(near) == 1 else None

    def suggest_key(self, path: DataPath) -> tuple[str | None, str | None]:
        """Return the intended key of the same mapping, and a hint about where the key belongs.

        At most one of the two is set.
        """
        key = str(path[-1])
        added = find_added_key(key)
        if added is not None:
            return self.suggest_list(path, added)
        holder = find_config_class(self.model, self.data, path[:-1])
        parent = find_node(self.root, path[:-1])
        if holder is None or parent is None or not isinstance(parent.value, dict):
            return None, None
        known = self.list_known_keys(holder)
        word = normalize_spelling(key)
        respelt = next((name for name in known if normalize_spelling(name) == word), None)
        if respelt is not None:
            return respelt, None
        spaced = format_spaced_key(key, known)
        if spaced is not None and is_empty(parent.value[key]):
            return None, spaced
        steps = tuple(key.split("."))
        if (
            len(steps) > 1
            and find_field_info(self.model, self.data, (*path[:-1], *steps)) is not None
        ):
            return (
                None,
                f"write {steps[-1]} below '{format_path((*path[:-1], *steps[:-1]))}': "
                "dots are for the command line",
            )
        above = self.find_empty_key_above(path, parent)
        if above is not None:
            return (
                None,
                f"indent it: it belongs to '{above}' in line {get_key_line(parent.value[above])}",
            )
        synonym = self.find_synonym(key, holder)
        if synonym is not None:
            return synonym, None
        suggestion = find_closest(key, known, present=set(parent.value))
        exact = self.find_elsewhere(key, path)
        # a number is no section: below `optimizer`, `rl: 1e-4` is a misspelt lr
        is_start = suggestion is not None and suggestion.startswith(f"{key}_")
        if suggestion and (is_start or not exact or not self.fits_elsewhere(path)):
            return suggestion, None
        misspelled = None if exact else self.suggest_misspelled_synonym(key, path, holder)
        return misspelled or (None, exact or self.find_section_above(path))

    def find_synonym(self, key: str, holder: type[Config]) -> str | None:
        """Return the key of a mapping that a word of another program means."""
        words = self.synonyms.get(key.lower().replace("-", "_"), ())
        return next((word for word in words if word in holder.model_fields), None)

    def suggest_misspelled_synonym(
        self, key: str, path: DataPath, holder: type[Config]
    ) -> tuple[str, None] | tuple[None, str] | None:
        """Return what `suggest_key` does for a misspelled word of another program, or None."""
        word = find_closest(key, self.synonyms)
        if word is None or not is_certain_typo(key, word, self.synonyms):
            return None
        meant = self.find_synonym(word, holder)
        if meant is not None:
            return meant, None
        hint = self.find_elsewhere(word, path)
        return None if hint is None else (None, hint)

    def find_section_above(self, path: DataPath) -> str | None:
        """Return a hint about a section of the top level that a mapping further down may mean."""
        node = find_node(self.root, path)
        if len(path) < 2 or node is None or not isinstance(node.value, dict):
            return None
        sections = [name for name in self.model.model_fields if self.is_section((name,))]
        slots = [
            name
            for name, field in self.model.model_fields.items()
            if is_slot(unwrap_annotation(field.annotation))
        ]
        meant = find_closest(str(path[-1]), [*sections, *slots])
        return None if meant is None else f"did you mean '{meant}', at the top level?"

    def suggest_list(self, path: DataPath, added: str) -> tuple[str | None, str | None]:
        """Return what `suggest_key` does for a key that adds to the list `added`."""
        holder = find_config_class(self.model, self.data, path[:-1])
        lists = [
            name
            for name, field in ({} if holder is None else holder.model_fields).items()
            if find_item_type(field.annotation) is not None
        ]
        words = (*self.synonyms.get(added.lower().replace("-", "_"), ()), added)
        meant = next((found for word in words if (found := find_closest(word, lists))), None)
        if meant is not None:
            return f"{meant}{ADDITION_SUFFIX}", None
        known = format_word_list([f"{name}{ADDITION_SUFFIX}" for name in lists], conjunction="and")
        return (
            None,
            f"lists here: {known}" if lists else "this key is not a list that can be extended",
        )

    def find_empty_key_above(self, path: DataPath, parent: Node) -> str | None:
        """Return the empty key above that could hold the unknown key."""
        assert isinstance(parent.value, dict)
        key, mark, found = str(path[-1]), find_key_origin(parent.value[str(path[-1])]), None
        for name, node in parent.value.items():
            if name == key:
                break
            is_beside = mark is not None and node.key is not None and node.key.source is mark.source
            if is_empty(node) and is_beside and key in self.collect_keys_inside((*path[:-1], name)):
                found = name
        return found

    def collect_keys_inside(self, path: DataPath) -> set[str]:
        """Return the keys that a section, or any component of a slot, may hold at `path`."""
        annotation = find_annotation(self.model, self.data, path)
        if is_slot(annotation):
            return {
                key
                for choice in registry.load_choices(annotation).values()
                for key in choice.model_fields
            }
        return (
            set(annotation.model_fields)
            if isinstance(annotation, type) and issubclass(annotation, Config)
            else set()
        )

    def find_elsewhere(self, key: str, path: DataPath) -> str | None:
        """Return a hint about other places of this key, or of a synonym, in the schema.

        Other components of the same slot come first, then the place nearest to the top.
        """
        holders = self.find_other_choices(key, path[:-1])
        if holders is not None:
            return holders
        word = key.lower().replace("-", "_")
        synonyms = self.synonyms.get(word, ())
        wanted = (*synonyms, key) if word in self.exact_synonyms else (key, *synonyms)
        places = (
            place
            for name in wanted
            for place in sorted(iter_field_paths(self.model, self.data, name), key=len)
        )
        place = next(places, None)
        if place is None:
            return None
        if place[-1] != key:
            return f"'{key}' is {format_path(place)} here"
        named = find_value(self.data, place[:-1]) if len(place) > 1 else None
        if isinstance(named, str):  # a component by its name alone, which has no place for keys
            value = find_value(self.data, path)
            written = to_flow_yaml(value) if isinstance(value, int | float) else "VALUE"
            return f"write {format_path(place[:-1])}: {{name: {named}, {key}: {written}}}"
        section = f"in {format_path(place[:-1])}" if len(place) > 1 else "at the top level"
        return f"'{key}' belongs {section}"

    def find_other_choices(self, key: str, path: DataPath) -> str | None:
        """Return a hint about the other components of the slot at `path` that have the key."""
        annotation: Any = find_annotation(self.model, self.data, path) if path else None
        if not is_slot(annotation):
            return None
        holders = [
            name
            for name, choice in registry.load_choices(annotation).items()
            if key in choice.model_fields
        ]
        if not holders:
            return None
        hint = (
            f"a key of {singularize_slot(annotation.slot)} {format_word_list(map(repr, holders))}"
        )
        is_chosen = find_value(self.data, (*path, NAME)) is not None
        return f"remove it: {hint}" if is_chosen else f"{hint}: add name, or remove it"

    def fits_elsewhere(self, path: DataPath) -> bool:
        """Return whether the value at `path` may stand at some place of this key."""
        node = find_node(self.root, path)
        is_mapping = node is None or node.value is None or isinstance(node.value, dict)
        places = iter_field_paths(self.model, self.data, str(path[-1]))
        return is_mapping or any(not self.is_section(place) for place in places)

    def is_section(self, path: DataPath) -> bool:
        """Return whether a section, not a value or a component, belongs at `path`."""
        annotation = find_annotation(self.model, self.data, path)
        is_config = isinstance(annotation, type) and issubclass(annotation, Config)
        return is_config and not is_slot(annotation)


def iter_field_paths(
    model: type[Config], data: Any, key: str, path: DataPath = ()
) -> Iterator[DataPath]:
    """Yield the paths of all fields called `key`, within the choices that `data` names."""
    for name, field in model.model_fields.items():
        if name == key:
            yield (*path, name)
        annotation = unwrap_annotation(field.annotation)
        value = data.get(name) if isinstance(data, dict) else None
        inner = find_choice_class(annotation, value) if is_slot(annotation) else annotation
        if (
            isinstance(inner, type)
            and issubclass(inner, Config)
            and not issubclass(inner, model)
            and find_item_type(field.annotation) is None
        ):
            yield from iter_field_paths(inner, value, key, (*path, name))


def collect_field_names(model: type[Config]) -> set[str]:
    """Return the names of all fields of a config, and of all that it may hold."""
    names: set[str] = set()
    pending, seen = [model], {model}
    while pending:
        for name, field in pending.pop().model_fields.items():
            names.add(name)
            inner: Any = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
            if is_slot(inner):
                found = list(registry.load_choices(inner).values())
            else:
                is_config = isinstance(inner, type) and issubclass(inner, Config)
                found = [inner] if is_config else []
            pending += [config for config in found if config not in seen]
            seen.update(found)
    return names


def format_spaced_key(text: str, keys: Collection[str]) -> str | None:
    """Return a hint for `key:value`, which YAML reads as one word, if there is such a key."""
    key, _, value = text.partition(":")
    return f"write a space after the colon: {key}: {value}" if key in keys and value else None


def is_empty(node: Node) -> bool:
    """Return whether a key has no value at all."""
    return node.value is None and node.key is not None and node.origin == node.key


def find_key_origin(node: Node | None) -> Origin | None:
    """Return the origin of the key that leads to a node, else of its value."""
    return None if node is None else node.key or node.origin


def get_key_line(node: Node) -> int:
    """Return the line number of a node's key."""
    return (node.key or node.origin).line
