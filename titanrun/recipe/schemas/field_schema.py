"""What an editor shows and accepts for one field, beyond what pydantic's schema says."""

from typing import Any

from titanrun.config.base import Config
from titanrun.config.describe_field import CHANGE_CLASS_MEANINGS, FieldDescription
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import load_flavor_names

Schema = dict[str, Any]
FLAVOR = "flavor"
REFERENCE: Schema = {"type": "string", "pattern": r"^\$\{"}
"""A `${...}` in place of a value of any type."""
# what stays outside of the alternatives of a value
ANNOTATIONS = ("description", "title", "default", "examples", "deprecated")


def describe_property(described: FieldDescription, schema: Schema) -> Schema:
    """Return the schema of a field with its name as title and all that is known of it as hover."""
    text = "\n\n".join(filter(None, [described.text, " ".join(list_facts(described))]))
    return {"title": described.name, **({"description": text} if text else {}), **schema}


def list_facts(described: FieldDescription) -> list[str]:
    """Return sentences about default, range, unit, and what a change of the field means."""
    default = described.default_text
    facts = [f"Default: {default}." if default and not described.is_required else ""]
    facts.append("Required." if described.is_required else "")
    facts.append(f"Range: {described.range}." if described.range else "")
    facts.append(f"Unit: {described.unit}." if described.unit else "")
    if described.metadata is not None:
        meaning = CHANGE_CLASS_MEANINGS[described.metadata.change]
        verb = "may" if described.metadata.resume else "must not"
        facts.append(f"{meaning.capitalize()}; a resumed run {verb} change it.")
    return [fact for fact in facts if fact]


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
