"""What an editor shows and accepts for one field, beyond what pydantic's schema says."""

from collections.abc import Collection, Iterator
from typing import Any

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.describe_field import CHANGE_CLASS_MEANINGS, FieldDescription
from titanrun.config.problems import DataPath
from titanrun.config.suggest import format_word_list
from titanrun.config.type_introspection import find_item_type, is_slot, unwrap_annotation
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import load_flavor_names
from titanrun.recipe.comparing.resume_policy import format_resume_policy

Schema = dict[str, Any]
Places = dict[type[Config], set[DataPath]]
FLAVOR = "flavor"
REFERENCE: Schema = {"type": "string", "pattern": r"^\$\{"}
"""A `${...}` in place of a value of any type."""
# what stays outside of the alternatives of a value
ANNOTATIONS = ("description", "title", "default", "examples", "deprecated")


def collect_places(
    config: type[Config], path: DataPath = (), found: Places | None = None
) -> Places:
    """Return where each config class may stand in a file of the class `config`.

    Paths are cut after two keys: what a resume allows depends on no more.
    """
    places = {} if found is None else found
    if path in places.setdefault(config, set()):
        return places
    places[config].add(path)
    for name, field in config.model_fields.items():
        for inner in iter_held_classes(field.annotation):
            collect_places(inner, (*path, name)[:2], places)
    return places


def iter_held_classes(annotation: Any) -> Iterator[type[Config]]:
    """Yield the section that a field holds, or every choice of its slot."""
    inner = find_item_type(annotation) or unwrap_annotation(annotation)
    if is_slot(inner):
        yield from registry.load_choices(inner).values()
    elif isinstance(inner, type) and issubclass(inner, Config):
        yield inner


def describe_property(
    described: FieldDescription, schema: Schema, places: Collection[DataPath]
) -> Schema:
    """Return the schema of a field with its name as title and all that is known of it as hover.

    `places` is where its config may stand in a recipe; empty for files that no run resumes with.
    A field whose value is code that runs has the kind of code as `x-runs`.
    """
    facts = [*list_facts(described), *filter(None, [format_resume_fact(described, places)])]
    text = "\n\n".join(filter(None, [described.text, " ".join(facts)]))
    runs = described.metadata.runs if described.metadata is not None else None
    return {
        "title": described.name,
        **({"description": text} if text else {}),
        **({"x-runs": runs} if runs else {}),
        **schema,
    }


def list_facts(described: FieldDescription) -> list[str]:
    """Return sentences about default, range, unit and change class of a field."""
    default = described.default_text
    facts = [f"Default: {default}." if default and not described.is_required else ""]
    facts.append("Required." if described.is_required else "")
    facts.append(f"Range: {described.range}." if described.range else "")
    facts.append(f"Unit: {described.unit}." if described.unit else "")
    if described.metadata is not None:
        facts.append(f"{capitalize_first(CHANGE_CLASS_MEANINGS[described.metadata.change])}.")
    return [fact for fact in facts if fact]


def format_resume_fact(described: FieldDescription, places: Collection[DataPath]) -> str:
    """Return whether a resume allows a change, section by section where that differs."""
    if described.metadata is None or not places:
        return ""
    sections: dict[str, list[str]] = {}
    for place in sorted(places, key=str):
        policy = format_resume_policy((*place, described.name), described.metadata)
        within = sections.setdefault(policy, [])
        within += [str(key) for key in place[:1] if key not in within]
    if len(sections) == 1:
        return f"{capitalize_first(next(iter(sections)))}."
    each = [
        f"in {format_word_list(within, conjunction='and', max_words=99)} {policy}"
        for policy, within in sections.items()
    ]
    return f"{capitalize_first('; '.join(each))}."


def capitalize_first(text: str) -> str:
    """Return a text with a capital first letter, and the rest as it is."""
    return text[:1].upper() + text[1:]


def allow_references(schema: Schema) -> Schema:
    """Return a schema that also accepts `${...}`, unless it accepts any text or one value only."""
    options = schema.get("anyOf")
    if options is None:
        if "const" in schema or "$ref" in schema or is_any_text(schema):
            return schema
        options = [{key: value for key, value in schema.items() if key not in ANNOTATIONS}]
    if any(is_any_text(option) or "$ref" in option for option in options):
        return schema
    kept = {key: value for key, value in schema.items() if key in ANNOTATIONS}
    return {**kept, "anyOf": [*options, REFERENCE]}


def is_any_text(schema: Schema) -> bool:
    """Return whether a schema accepts texts that it does not list."""
    return schema.get("type") == "string" and not {"enum", "pattern"} & set(schema)


def offer_flavors(config: type[Config], name: str, schema: Schema) -> Schema:
    """Return the schema of `flavor` of a model family with its flavors, for completion.

    Any text stays allowed: in a resolved recipe the flavor is a label.
    """
    if name != FLAVOR or not issubclass(config, ModelConfig):
        return schema
    flavors = load_flavor_names(config)
    words = [*flavors, "auto"] if config.huggingface_types else flavors
    rest = {key: value for key, value in schema.items() if key != "examples"}
    return {**rest, "anyOf": [{"enum": words}, *schema["anyOf"]]} if words else schema
