"""A commented recipe to begin with: what runs as it stands, and every other setting that is built, switched off at its default."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe import default_of, short
from titanrun.config.docs import class_summary, field_docs
from titanrun.config.emit import flow
from titanrun.config.fields import setting_of
from titanrun.config.problems import fail
from titanrun.config.shape import bare, is_slot, options
from titanrun.config.suggest import closest, listing
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.flavors import flavor_names
from titanrun.recipe import menu
from titanrun.recipe.recipe import Recipe

WIDTH = 100
SMALLEST = "debugmodel"
HEAD = """\
# yaml-language-server: $schema={schema}
# A recipe to begin with; it trains as it stands: titanrun train {file}
# A # without a space before a setting switches it off: it has the value that is shown. Remove the # to change it.
# titanrun explain training.steps says more about a setting, titanrun validate {file} what is wrong.
"""
# a first run of a small model on the corpus that ships, done in a minute on a CPU
FIRST_RUN: Mapping[str, Mapping[str, Any]] = {
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "training": {"dataset": "tiny", "local_batch_size": 8, "seq_len": 256, "steps": 120, "mixed_precision_param": "float32"},
    "checkpoint": {"enable": True, "interval": 60},
    "validation": {"enable": True, "freq": 60, "steps": 8},
}


def starter(model: str | None, *, file: str, schema: str) -> str:
    """The text of the recipe. `model` is a family, or family:flavor; None: the first family. Raises ProblemsFound."""
    menu.open_menu()
    family, flavor = chosen_model(model)
    values: dict[str, Any] = {"version": 1, "model": {"name": family, "flavor": flavor}, **FIRST_RUN}
    return HEAD.format(schema=schema, file=file) + "".join(f"{line}\n" for line in recipe_lines(values))


def chosen_model(written: str | None) -> tuple[str, str | None]:
    """Family and flavor: the smallest flavor where none is written."""
    families = registry.names(ModelConfig)
    family, _, flavor = (written or families[0]).partition(":")
    if family not in families:
        meant = closest(family, families)
        raise fail(
            "unknown-name", f"unknown model '{family}'", help=f"did you mean '{meant}'?" if meant else f"models: {listing(families)}"
        )
    known = names_of_flavors(family)
    if flavor and flavor not in known:
        meant = closest(flavor, known)
        help = f"did you mean '{meant}'?" if meant else f"flavors: {listing(known, last='and', most=99)}"
        raise fail("unknown-name", f"{family} has no flavor '{flavor}'", help=help)
    return family, flavor or (SMALLEST if SMALLEST in known else next(iter(known), None))


def names_of_flavors(family: str) -> list[str]:
    """The flavors of a family."""
    chosen = registry.choice(ModelConfig, family)
    assert issubclass(chosen, ModelConfig)
    return flavor_names(chosen)


def recipe_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the whole recipe; an empty line before each section."""
    after_section = False
    for name, field in Recipe.model_fields.items():
        setting = setting_of(field)
        if setting is not None and setting.not_built:
            continue
        held = held_config(field.annotation, values.get(name))
        text = field_docs(Recipe).get(name) or (class_summary(held) if held else "")
        if held is None:
            yield from [""] * after_section
            yield from setting_lines(name, field, values, text)
            after_section = False
        elif inside := list(inside_lines(held, values.get(name) or {})):
            yield from ["", *comment(text), f"{name}:" if name in values else f"#{name}:"]
            yield from (f"  {line}" for line in inside)
            after_section = True


def held_config(annotation: Any, value: Any) -> type[Config] | None:
    """The section, or the component that is shown with its fields: the one that is written, else the slot's default."""
    inner = bare(annotation)
    if not isinstance(inner, type) or not issubclass(inner, Config):
        return None
    if not is_slot(inner):
        return inner
    assert issubclass(inner, ComponentConfig)
    name = value["name"] if isinstance(value, Mapping) else inner.default_name
    return registry.choice(inner, name) if name else None


def inside_lines(config: type[Config], values: Mapping[str, Any]) -> Iterator[str]:
    """The settings of one section; what is not built and what lies deeper is left out."""
    texts = field_docs(config)
    for name, field in config.model_fields.items():
        setting = setting_of(field)
        inner = bare(field.annotation)
        if (setting and setting.not_built) or (isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)):
            continue
        yield from setting_lines(name, field, values, texts.get(name) or "", family=config if issubclass(config, ModelConfig) else None)


def setting_lines(name: str, field: Any, values: Mapping[str, Any], text: str, *, family: type[ModelConfig] | None = None) -> Iterator[str]:
    """The comment and the line of one setting."""
    yield from comment(text + choice_words(name, field, family))
    if name in values:
        yield f"{name}: {flow(values[name])}"
    else:
        yield f"#{name}: {flow(short(default_of(field)))}"


def choice_words(name: str, field: Any, family: type[ModelConfig] | None) -> str:
    """The values to choose from, behind the comment."""
    inner = bare(field.annotation)
    words = [flow(option) for option in options(inner)]
    if is_slot(inner):
        words = registry.names(inner)
    if family is not None and name == "flavor":
        words = flavor_names(family)
    return f" ({listing(words, most=99)})" if len(words) > 1 else ""


def comment(text: str) -> list[str]:
    """Text as lines behind #."""
    return [f"# {line}" for line in wrap(text, WIDTH)]
