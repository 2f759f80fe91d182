"""JSON Schema of recipes for editors: slots as if/then on `name`, no oneOf."""

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe_field import describe_field
from titanrun.config.field_docs import get_class_doc, get_field_docs
from titanrun.config.fields import SECRET, get_former_names, is_secret
from titanrun.config.list_additions import ADDITION_SUFFIX
from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    find_item_type,
    is_slot,
    unwrap_annotation,
)
from titanrun.recipe import builtins
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.recipe import FILE_ONLY_KEYS
from titanrun.recipe.resolving.multi_stage import ID, STAGE_ID_PATTERN, STAGES, TOP_LEVEL_KEYS
from titanrun.recipe.schemas.field_schema import (
    REFERENCE,
    allow_references,
    collect_places,
    describe_property,
    offer_flavors,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def build_recipe_schema() -> Schema:
    """Return the complete schema with every registered component."""
    builtins.register_builtins()
    linker = SchemaBuilder(get_recipe_class())
    root = linker.build_config_schema(get_recipe_class())
    root["properties"]["extends"] = {
        "title": "extends",
        "description": FILE_ONLY_KEYS["extends"],
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    root["properties"][STAGES] = build_stages_schema(root["properties"])
    root["patternProperties"] = {"^x-": {"description": FILE_ONLY_KEYS["x-*"]}}
    root |= {
        "required": ["version"],
        "if": {"anyOf": [{"required": ["extends"]}, {"required": [STAGES]}]},
        "else": build_required_schema(get_recipe_class()),
    }
    return {
        "$schema": DIALECT,
        "title": "titanrun recipe",
        **root,
        "$defs": dict(sorted(linker.definitions.items())),
    }


def build_stages_schema(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of a list of stages, each with an id and the keys of a recipe."""
    own = {key: schema for key, schema in properties.items() if key not in TOP_LEVEL_KEYS}
    identity: Schema = {
        "type": "string",
        "pattern": f"^{STAGE_ID_PATTERN.pattern}$",
        "description": "Name of the stage, and of its folder.",
    }
    stage: Schema = {
        "type": "object",
        "properties": {ID: identity, **own},
        "required": [ID],
        "additionalProperties": False,
    }
    several: Schema = {"type": "array", "minItems": 1, "items": stage}
    return {
        "title": STAGES,
        "description": properties[STAGES]["description"],
        "anyOf": [several, {"type": "null"}],
        "default": None,
    }


def build_required_schema(config: type[Config]) -> Schema:
    """Return the requirements on a section whose keys no other file can add.

    These are its required keys, and the names of components without a default.
    """
    demands: Schema = {
        "required": [name for name, field in config.model_fields.items() if field.is_required()]
    }
    inner = {
        name: unwrap_annotation(field.annotation) for name, field in config.model_fields.items()
    }
    below = {
        name: build_holder_required_schema(holder)
        for name, holder in inner.items()
        if isinstance(holder, type) and issubclass(holder, Config)
    }
    demands["properties"] = {name: schema for name, schema in below.items() if schema}
    return {key: value for key, value in demands.items() if value}


def build_holder_required_schema(holder: type[Config]) -> Schema:
    """Return the requirements on the slot or section that one field holds."""
    if not is_slot(holder):
        return build_required_schema(holder)
    assert issubclass(holder, ComponentConfig)
    return (
        {"if": {"type": "object"}, "then": {"required": ["name"]}}
        if holder.default_name is None
        else {}
    )


class SlotPlaceholderJsonSchema(GenerateJsonSchema):
    """Pydantic's generator, with an empty schema for slots, which `SchemaBuilder` fills."""

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> Schema:
        """Return an empty schema: slots are the only plain functions among the validators."""
        return {}


class SchemaBuilder:
    """Builder that defines the schema of every config and slot once, under its name.

    `recipe` is the class of the files if they are recipes, which may add to lists with
    `converters+` and refer to other values with `${...}`.
    """

    def __init__(self, recipe: type[Config] | None = None) -> None:
        self.is_recipe = recipe is not None
        self.places = {} if recipe is None else collect_places(recipe)
        self.definitions: dict[str, Schema] = {}
        self.defined_configs: dict[str, type[Config]] = {}

    def build_config_schema(self, config: type[Config]) -> Schema:
        """Return the schema of an object with the config's fields, descriptions and defaults."""
        generated = config.model_json_schema(schema_generator=SlotPlaceholderJsonSchema)
        described = get_field_docs(config)
        properties: dict[str, Schema] = {}
        for name, field in config.model_fields.items():
            drawn = {
                key: value
                for key, value in generated["properties"][name].items()
                if key != "title" and not key.startswith("x-")
            }
            linked = (
                build_secret_schema(field)
                if is_secret(field)
                else self.link_references(field.annotation, drawn)
            )
            if self.is_recipe and not is_secret(field):
                linked = allow_references(offer_flavors(config, name, linked))
            properties[name] = describe_property(
                describe_field(name, field, described.get(name, "")),
                linked,
                self.places.get(config, ()),
            )
            if self.is_recipe and find_item_type(field.annotation) is not None:
                properties[name + ADDITION_SUFFIX] = build_addition_schema(name, linked)
            for former in get_former_names(field):
                properties[former] = {
                    "deprecated": True,
                    "description": f"Now called {name}.",
                    **linked,
                }
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if get_class_doc(config):
            schema["description"] = get_class_doc(config)
        required = [name for name, field in config.model_fields.items() if field.is_required()]
        return (
            {**schema, "required": required}
            if required and issubclass(config, ComponentConfig)
            else schema
        )

    def link_references(self, annotation: Any, drawn: Schema) -> Schema:
        """Return pydantic's schema of a field, with references to nested configs and slots."""
        inner, item = unwrap_annotation(annotation), find_item_type(annotation)
        holder = item if item is not None else inner
        if not (isinstance(holder, type) and issubclass(holder, Config)):
            return drawn
        reference: Schema = {"$ref": f"#/$defs/{self.define(holder)}"}
        if item is not None and is_slot(item):
            # items of a list never merge with those of another file
            reference |= build_holder_required_schema(item)
        options: list[Schema] = [
            {"type": "array", "items": reference} if item is not None else reference
        ]
        if accepts_auto(annotation):
            options.append({"const": "auto"})
        if accepts_null(annotation):
            options.append({"type": "null"})
        return options[0] if len(options) == 1 else {"anyOf": options}

    def define(self, config: type[Config]) -> str:
        """Define a config or slot and return its name."""
        if is_slot(config):
            assert issubclass(config, ComponentConfig)
            return self.define_slot(config)
        name = config.__name__.removesuffix("Config")
        if self.defined_configs.setdefault(name, config) is not config:
            # a class of a plug-in may have the name of another one
            name = f"{config.__module__}.{name}"
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.build_config_schema(config)
        return name

    def define_slot(self, slot: type[ComponentConfig]) -> str:
        """Define a slot and return its name.

        It is a bare name, or a mapping whose `name` decides which other keys it has.
        """
        if slot.slot in self.definitions:
            return slot.slot
        self.definitions[slot.slot] = {}
        choices = registry.load_choices(slot)
        if not choices:
            # nothing is registered yet, so nothing is allowed
            self.definitions[slot.slot] = {"description": get_class_doc(slot), "not": {}}
            return slot.slot
        bare_names = [name for name, choice in choices.items() if not get_required_fields(choice)]
        cases = [self.build_case(slot, name, choice) for name, choice in choices.items()]
        by_name: Schema = {
            "if": {"type": "object"},
            "then": {"properties": {"name": {"enum": list(choices)}}, "allOf": cases},
        }
        shapes: list[Schema] = [{"enum": bare_names}] if bare_names else []
        shapes += [{"type": "object"}, *([REFERENCE] if self.is_recipe else [])]
        self.definitions[slot.slot] = {
            "description": get_class_doc(slot),
            "anyOf": shapes,
            **by_name,
        }
        return slot.slot

    def build_case(
        self, slot: type[ComponentConfig], name: str, choice: type[ComponentConfig]
    ) -> Schema:
        """Return an if/then: a mapping with this component's name has this component's keys.

        The default component needs no name.
        """
        condition: Schema = {"properties": {"name": {"const": name}}}
        if name != slot.default_name:
            condition["required"] = ["name"]
        return {"if": condition, "then": {"$ref": f"#/$defs/{self.define(choice)}"}}


def build_secret_schema(field: FieldInfo) -> Schema:
    """Return the schema of a secret field: a reference to an environment variable."""
    reference: Schema = {
        "type": "string",
        "pattern": f"^{SECRET.pattern}$",
        "examples": ["${env:NAME}"],
    }
    return (
        {"anyOf": [reference, {"type": "null"}], "default": None}
        if accepts_null(field.annotation)
        else reference
    )


def build_addition_schema(name: str, linked: Schema) -> Schema:
    """Return the schema of the key that adds to the list `name`, whose own schema is `linked`."""
    options = linked.get("anyOf", [linked])
    item = next(option["items"] for option in options if option.get("type") == "array")
    return {
        "title": name + ADDITION_SUFFIX,
        "description": f"Items added to the inherited list `{name}`, where `{name}` replaces it.",
        "anyOf": [{"type": "array", "items": item}, item],
    }


def get_required_fields(choice: type[ComponentConfig]) -> list[str]:
    """Return the fields without a default, except `name`."""
    return [
        name
        for name, field in choice.model_fields.items()
        if field.is_required() and name != "name"
    ]
