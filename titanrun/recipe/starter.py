"""A commented recipe to begin with: what runs as it stands, and every other setting that is built, switched off at its default."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe import default_of, short
from titanrun.config.docs import class_summary, field_docs
from titanrun.config.emit import flow, toml_value
from titanrun.config.fields import setting_of
from titanrun.config.problems import fail
from titanrun.config.shape import bare, is_slot, options
from titanrun.config.suggest import closest, listing
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.flavors import flavor_names
from titanrun.recipe import menu
from titanrun.recipe.recipe import Recipe

Format = Literal["yaml", "toml"]
WIDTH = 77
SMALLEST = "debugmodel"
HEAD = """\
{editor_line}
# A recipe to begin with; it trains as it stands: titanrun train {file}
# A setting behind a # has the value that is shown; remove the # to change it.
# titanrun explain training.steps says more about a setting,
# titanrun validate {file} what is wrong.
"""
# a first run of a small model on the corpus that ships, done in a minute on a CPU
FIRST_RUN: Mapping[str, Mapping[str, Any]] = {
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "training": {
        "dataset": "tiny",
        "local_batch_size": 8,
        "seq_len": 256,
        "steps": 120,
        "mixed_precision_param": "float32",
    },
    "checkpoint": {"enable": True, "interval": 60},
    "validation": {"enable": True, "freq": 60, "steps": 8},
}
# the same for a family that learns pictures, by what it takes
OF_CONTENT: Mapping[str, Mapping[str, Any]] = {
    "tokens": FIRST_RUN,
    "images": {
        "optimizer": {"name": "adamw", "lr": 2e-3},
        "loss": {"name": "flow_matching"},
        "training": {
            "dataset": {"name": "tiny_images", "image_size": 128},
            "local_batch_size": 4,
            "seq_len": 128,
            "steps": 100,
            "mixed_precision_param": "float32",
        },
        "activation_checkpoint": {"name": "full"},
        "checkpoint": {"enable": True, "interval": 50},
        "validation": {"enable": True, "freq": 50, "steps": 8},
    },
}
# the smallest size of a family whose debugmodel is none that a laptop trains
SMALLEST_OF = {"flux": "tiny"}


@dataclass(frozen=True, slots=True)
class Style:
    """How a format writes what a starter consists of. Where `settings_first`, what follows a section's head belongs to the section."""

    editor_line: str
    pair: Callable[[str, object], str]
    section: Callable[[str], str]
    indent: str
    settings_first: bool = False


STYLES = {
    "yaml": Style(
        "# yaml-language-server: $schema={}",
        lambda name, value: f"{name}: {flow(value)}",
        "{}:".format,
        "  ",
    ),
    "toml": Style(
        "#:schema {}",
        lambda name, value: f"{name} = {toml_value(value)}",
        "[{}]".format,
        "",
        settings_first=True,
    ),
}


def starter(model: str | None, *, file: str, schema: str, format: Format = "yaml") -> str:
    """The text of the recipe. `model` is a family, or family:flavor; None: the first family. Raises ProblemsFound."""
    style = STYLES[format]
    menu.open_menu()
    family, flavor = chosen_model(model)
    first_run = OF_CONTENT[registry.choice(ModelConfig, family).takes]  # type: ignore[attr-defined]
    values: dict[str, Any] = {
        "version": 1,
        "model": {"name": family, "flavor": flavor},
        **first_run,
    }
    head = HEAD.format(editor_line=style.editor_line.format(schema), file=file)
    return head + "".join(f"{line}\n" for line in recipe_lines(values, style))


def chosen_model(written: str | None) -> tuple[str, str | None]:
    """Family and flavor: the smallest flavor where none is written."""
    families = registry.names(ModelConfig)
    family, _, flavor = (written or families[0]).partition(":")
    if family not in families:
        meant = closest(family, families)
        raise fail(
            "unknown-name",
            f"unknown model '{family}'",
            help=f"did you mean '{meant}'?" if meant else f"models: {listing(families)}",
        )
    known = names_of_flavors(family)
    if flavor and flavor not in known:
        meant = closest(flavor, known)
        help = (
            f"did you mean '{meant}'?"
            if meant
            else f"flavors: {listing(known, last='and', most=99)}"
        )
        raise fail("unknown-name", f"{family} has no flavor '{flavor}'", help=help)
    smallest = SMALLEST_OF.get(family, SMALLEST)
    return family, flavor or (smallest if smallest in known else next(iter(known), None))


def names_of_flavors(family: str) -> list[str]:
    """The flavors of a family."""
    chosen = registry.choice(ModelConfig, family)
    assert issubclass(chosen, ModelConfig)
    return flavor_names(chosen)


def recipe_lines(values: Mapping[str, Any], style: Style) -> Iterator[str]:
    """The lines of the whole recipe; an empty line before each section."""
    after_section = False
    fields = list(Recipe.model_fields.items())
    if style.settings_first:
        fields.sort(
            key=lambda item: held_config(item[1].annotation, values.get(item[0])) is not None
        )
    for name, field in fields:
        setting = setting_of(field)
        if setting is not None and setting.not_built:
            continue
        held = held_config(field.annotation, values.get(name))
        if held is not None and name not in values and field.default is None:
            # the section of another kind of run: with its defaults there it is no longer switched off
            continue
        text = field_docs(Recipe).get(name) or (class_summary(held) if held else "")
        if held is None:
            yield from [""] * after_section
            yield from setting_lines(name, field, values, text, style)
            after_section = False
        elif inside := list(inside_lines(held, values.get(name) or {}, style)):
            yield from ["", *comment(text), ("" if name in values else "#") + style.section(name)]
            yield from (f"{style.indent}{line}" for line in inside)
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


def inside_lines(config: type[Config], values: Mapping[str, Any], style: Style) -> Iterator[str]:
    """The settings of one section; what is not built and what lies deeper is left out."""
    texts = field_docs(config)
    for name, field in config.model_fields.items():
        setting = setting_of(field)
        inner = bare(field.annotation)
        if (setting and setting.not_built) or (
            isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)
        ):
            continue
        family = config if issubclass(config, ModelConfig) else None
        yield from setting_lines(name, field, values, texts.get(name) or "", style, family=family)


def setting_lines(
    name: str,
    field: Any,
    values: Mapping[str, Any],
    text: str,
    style: Style,
    *,
    family: type[ModelConfig] | None = None,
) -> Iterator[str]:
    """The comment and the line of one setting."""
    yield from comment(text + choice_words(name, field, family))
    if name in values:
        yield style.pair(name, values[name])
    else:
        yield f"#{style.pair(name, short(default_of(field)))}"


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
