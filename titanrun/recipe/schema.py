"""The JSON Schema of recipes, in the shape that editors serve best: slots as if/then on `name`, no oneOf."""

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.docs import class_doc, field_docs
from titanrun.config.fields import SECRET, former_names, is_secret
from titanrun.config.shape import accepts_auto, accepts_null, bare, is_slot, item_type
from titanrun.recipe import menu
from titanrun.recipe.plugins import recipe_class
from titanrun.recipe.stages import GOOD_ID, ID, OF_THE_WHOLE, STAGES
from titanrun.recipe.written_only import WRITTEN_ONLY

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def recipe_schema() -> Schema:
    """The whole schema, every component on the menu in it."""
    menu.open_menu()
    linker = Linker()
    root = linker.config_schema(recipe_class())
    root["properties"]["extends"] = {
        "description": WRITTEN_ONLY["extends"],
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    root["properties"][STAGES] = stages_schema(root["properties"])
    root["patternProperties"] = {"^x-": {"description": WRITTEN_ONLY["x-*"]}}
    root |= {
        "required": ["version"],
        "if": {"anyOf": [{"required": ["extends"]}, {"required": [STAGES]}]},
        "else": whole(recipe_class()),
    }
    return {
        "$schema": DIALECT,
        "title": "titanrun recipe",
        **root,
        "$defs": dict(sorted(linker.definitions.items())),
    }


def stages_schema(properties: Mapping[str, Schema]) -> Schema:
    """A list of stages, each with an id and the keys of a recipe."""
    own = {key: schema for key, schema in properties.items() if key not in OF_THE_WHOLE}
    identity: Schema = {
        "type": "string",
        "pattern": f"^{GOOD_ID.pattern}$",
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
        "description": properties[STAGES]["description"],
        "anyOf": [several, {"type": "null"}],
        "default": None,
    }


def whole(config: type[Config]) -> Schema:
    """What a section must hold where no other file can bring it: its required keys, and the names of components without a default."""
    demands: Schema = {
        "required": [name for name, field in config.model_fields.items() if field.is_required()]
    }
    inner = {name: bare(field.annotation) for name, field in config.model_fields.items()}
    below = {
        name: demands_of(holder)
        for name, holder in inner.items()
        if isinstance(holder, type) and issubclass(holder, Config)
    }
    demands["properties"] = {name: schema for name, schema in below.items() if schema}
    return {key: value for key, value in demands.items() if value}


def demands_of(holder: type[Config]) -> Schema:
    """The same for what one field holds, a slot or a section."""
    if not is_slot(holder):
        return whole(holder)
    assert issubclass(holder, ComponentConfig)
    return (
        {"if": {"type": "object"}, "then": {"required": ["name"]}}
        if holder.default_name is None
        else {}
    )


class SlotsLeftOpen(GenerateJsonSchema):
    """Pydantic's generator, with an empty schema where a slot stands: `Linker` knows its choices."""

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> Schema:
        """Slots are the only plain functions among our validators."""
        return {}


class Linker:
    """Collects the schema of every config and slot once, under its name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self.defined: dict[str, type[Config]] = {}

    def config_schema(self, config: type[Config]) -> Schema:
        """An object with the config's fields, descriptions and defaults."""
        generated = config.model_json_schema(schema_generator=SlotsLeftOpen)
        described = field_docs(config)
        properties: dict[str, Schema] = {}
        for name, field in config.model_fields.items():
            drawn = {
                key: value
                for key, value in generated["properties"][name].items()
                if key != "title" and not key.startswith("x-")
            }
            linked = (
                secret_schema(field) if is_secret(field) else self.linked(field.annotation, drawn)
            )
            properties[name] = (
                {"description": described[name], **linked} if name in described else linked
            )
            for former in former_names(field):
                properties[former] = {
                    "deprecated": True,
                    "description": f"Now called {name}.",
                    **linked,
                }
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if class_doc(config):
            schema["description"] = class_doc(config)
        required = [name for name, field in config.model_fields.items() if field.is_required()]
        return (
            {**schema, "required": required}
            if required and issubclass(config, ComponentConfig)
            else schema
        )

    def linked(self, annotation: Any, drawn: Schema) -> Schema:
        """The schema pydantic drew for one field, nested configs and slots replaced by references."""
        inner, item = bare(annotation), item_type(annotation)
        holder = item if item is not None else inner
        if not (isinstance(holder, type) and issubclass(holder, Config)):
            return drawn
        reference: Schema = {"$ref": f"#/$defs/{self.define(holder)}"}
        if item is not None and is_slot(item):
            # items of a list never merge with those of another file
            reference |= demands_of(item)
        options: list[Schema] = [
            {"type": "array", "items": reference} if item is not None else reference
        ]
        if accepts_auto(annotation):
            options.append({"const": "auto"})
        if accepts_null(annotation):
            options.append({"type": "null"})
        return options[0] if len(options) == 1 else {"anyOf": options}

    def define(self, config: type[Config]) -> str:
        """The name under which a config or slot is defined."""
        if is_slot(config):
            assert issubclass(config, ComponentConfig)
            return self.define_slot(config)
        name = config.__name__.removesuffix("Config")
        if self.defined.setdefault(name, config) is not config:
            # a plug-in may call its class as another one is called
            name = f"{config.__module__}.{name}"
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.config_schema(config)
        return name

    def define_slot(self, slot: type[ComponentConfig]) -> str:
        """A bare name, or a mapping whose `name` decides which other keys it has."""
        if slot.slot in self.definitions:
            return slot.slot
        self.definitions[slot.slot] = {}
        choices = registry.choices(slot)
        if not choices:
            # nothing is registered yet, so nothing is allowed
            self.definitions[slot.slot] = {"description": class_doc(slot), "not": {}}
            return slot.slot
        bare_names = [name for name, choice in choices.items() if not required_fields(choice)]
        cases = [self.case(slot, name, choice) for name, choice in choices.items()]
        by_name: Schema = {
            "if": {"type": "object"},
            "then": {"properties": {"name": {"enum": list(choices)}}, "allOf": cases},
        }
        shapes = [{"enum": bare_names}, {"type": "object"}] if bare_names else [{"type": "object"}]
        self.definitions[slot.slot] = {"description": class_doc(slot), "anyOf": shapes, **by_name}
        return slot.slot

    def case(self, slot: type[ComponentConfig], name: str, choice: type[ComponentConfig]) -> Schema:
        """If the mapping is of this choice, then it has this choice's keys; the default choice needs no name."""
        condition: Schema = {"properties": {"name": {"const": name}}}
        if name != slot.default_name:
            condition["required"] = ["name"]
        return {"if": condition, "then": {"$ref": f"#/$defs/{self.define(choice)}"}}


def secret_schema(field: FieldInfo) -> Schema:
    """What a secret field takes: the name of an environment variable, in a reference."""
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


def required_fields(choice: type[ComponentConfig]) -> list[str]:
    """Fields without a default, `name` aside."""
    return [
        name
        for name, field in choice.model_fields.items()
        if field.is_required() and name != "name"
    ]
