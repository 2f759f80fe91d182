"""Commented starter recipe.

It trains as it is. A full one lists every other available setting commented out at its default.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, Literal

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe_field import get_default_data, shorten_component
from titanrun.config.field_docs import get_class_summary, get_field_docs
from titanrun.config.fields import find_field_metadata
from titanrun.config.problems import problem_error
from titanrun.config.serialize import format_toml_value, to_flow_yaml
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.type_introspection import get_literal_values, is_slot, unwrap_annotation
from titanrun.config.types import AUTO
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import load_flavor_names
from titanrun.recipe import builtins
from titanrun.recipe.recipe import Recipe

TemplateFormat = Literal["yaml", "toml"]
WIDTH = 76
DEFAULT_SMALLEST_FLAVOR = "debugmodel"
HEAD = """\
{editor_line}
# A starter recipe that trains as it is: titanrun train {file}
# A setting after a # has the value shown; remove the # to change it.
# titanrun explain training.steps documents a setting,
# titanrun validate {file} reports problems.
"""
FULL_HINT = "# titanrun init --full writes all settings.\n"
# settings of a short recipe that a first run does not need, but that a second one often changes
SHORT_SETTINGS = {
    ("model", "hf_assets_path"),
    ("lr_scheduler", "warmup_steps"),
    ("training", "global_batch_size"),
}
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
# the same by the modality of the model family
FIRST_RUN_BY_MODALITY: Mapping[str, Mapping[str, Any]] = {
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
PARAMETER_UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}
# smallest flavor of families whose debugmodel is too large for a laptop
SMALLEST_FLAVORS = {"flux": "tiny"}


@dataclass(frozen=True, slots=True)
class TemplateStyle:
    """How a file format writes the parts of a template.

    With `puts_settings_first`, top-level settings come before sections, because whatever follows a
    section's head belongs to the section. `is_full` selects all settings with their whole texts.
    """

    editor_line: str
    format_pair: Callable[[str, object], str]
    format_section: Callable[[str], str]
    indent: str
    puts_settings_first: bool = False
    is_full: bool = True

    def shows(self, section: str, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether the template has a setting of a section, or of the top level ("")."""
        return self.is_full or name in values or (section, name) in SHORT_SETTINGS

    def format_comment(self, text: str, choices: str = "") -> list[str]:
        """Return comment lines; in a short recipe one line at most."""
        if self.is_full:
            return format_comment(text + choices)
        sentence = text.split(". ")[0].split(": ")[0].removesuffix(".")
        while len(sentence) >= WIDTH:
            sentence = max(sentence.rpartition(", ")[0], sentence.rpartition(" (")[0], key=len)
        line = f"{sentence}.{choices}"
        return [f"# {line if len(line) <= WIDTH else f'{sentence}.'}"] if sentence else []


TEMPLATE_STYLES = {
    "yaml": TemplateStyle(
        "# yaml-language-server: $schema={}",
        lambda name, value: f"{name}: {to_flow_yaml(value)}",
        "{}:".format,
        "  ",
    ),
    "toml": TemplateStyle(
        "#:schema {}",
        lambda name, value: f"{name} = {format_toml_value(value)}",
        "[{}]".format,
        "",
        puts_settings_first=True,
    ),
}


def build_recipe_template(
    model: str | None,
    *,
    file: str,
    schema: str,
    file_format: TemplateFormat = "yaml",
    is_full: bool = False,
) -> str:
    """Return the text of a starter recipe.

    Args:
        model: Family, or family:flavor; None for the first family.
        file: File name that the comments mention.
        schema: JSON Schema that the editor line names.
        file_format: yaml or toml.
        is_full: Whether to write every setting; else those of a first run, with one line each.

    Raises:
        ProblemsFound: If the family or flavor is unknown.
    """
    style = TEMPLATE_STYLES[file_format]
    builtins.register_builtins()
    family, flavor = select_model(model)
    first_run = FIRST_RUN_BY_MODALITY[registry.load_choice(ModelConfig, family).modality]  # type: ignore[attr-defined]
    values: dict[str, Any] = {
        "version": 1,
        "model": {"name": family, "flavor": flavor},
        **first_run,
    }
    head = HEAD.format(editor_line=style.editor_line.format(schema), file=file)
    head += "" if is_full else FULL_HINT
    lines = iter_recipe_lines(values, replace(style, is_full=is_full))
    return head + "".join(f"{line}\n" for line in lines)


def select_model(written: str | None) -> tuple[str, str | None]:
    """Return family and flavor; the smallest flavor if none is written."""
    families = registry.get_choice_names(ModelConfig)
    family, _, flavor = (written or families[0]).partition(":")
    if family not in families:
        meant = find_closest(family, families)
        raise problem_error(
            "unknown-name",
            f"unknown model '{family}'",
            hint=f"did you mean '{meant}'?" if meant else f"models: {format_word_list(families)}",
        )
    known = format_flavor_names(family)
    if flavor and flavor not in known:
        meant = find_nearest_size(flavor, known) or find_closest(flavor, known)
        hint = (
            f"did you mean '{meant}'?"
            if meant
            else f"flavors: {format_word_list(known, conjunction='and', max_words=99)}"
        )
        raise problem_error("unknown-name", f"{family} has no flavor '{flavor}'", hint=hint)
    smallest = SMALLEST_FLAVORS.get(family, DEFAULT_SMALLEST_FLAVOR)
    return family, flavor or (smallest if smallest in known else next(iter(known), None))


def find_nearest_size(flavor: str, known: list[str]) -> str | None:
    """Return the flavor with the nearest number of parameters, None unless sizes are its names."""
    size = read_size(flavor)
    sizes = {name: found for name in known if (found := read_size(name)) is not None}
    if size is None or not sizes:
        return None
    return min(sizes, key=lambda name: abs(math.log(sizes[name] / size)))


def read_size(flavor: str) -> float | None:
    """Return the number of parameters that a name such as 8B or 0.6B states."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([MBT])", flavor.upper())
    size = float(found[1]) * PARAMETER_UNITS[found[2]] if found else 0
    return size or None


def format_flavor_names(family: str) -> list[str]:
    """Return the flavors of a family."""
    chosen = registry.load_choice(ModelConfig, family)
    assert issubclass(chosen, ModelConfig)
    return load_flavor_names(chosen)


def iter_recipe_lines(values: Mapping[str, Any], style: TemplateStyle) -> Iterator[str]:
    """Yield the lines of the whole recipe, with an empty line before each section."""
    after_section = False
    fields = list(Recipe.model_fields.items())
    if style.puts_settings_first:
        fields.sort(key=lambda item: find_section(item[0], item[1], values) is not None)
    for name, field in fields:
        setting = find_field_metadata(field)
        if setting is not None and setting.not_built:
            continue
        held = find_section(name, field, values)
        if held is not None and name not in values and field.default is None:
            # a section of another kind of run: writing its defaults would enable it
            continue
        text = get_field_docs(Recipe).get(name) or (get_class_summary(held) if held else "")
        if held is None:
            if style.shows("", name, values):
                yield from [""] * after_section
                yield from iter_setting_lines(name, field, values, text, style)
                after_section = False
        elif inside := list(iter_config_lines(name, held, values.get(name) or {}, style)):
            yield from [
                "",
                *(format_comment(text) if style.is_full else ()),
                ("" if name in values else "#") + style.format_section(name),
            ]
            yield from (f"{style.indent}{line}" for line in inside)
            after_section = True


def find_section(name: str, field: FieldInfo, values: Mapping[str, Any]) -> type[Config] | None:
    """Return the section or component of a field of the recipe, None for a setting.

    A slot that is `auto` is a setting: it has no component by default.
    """
    if name not in values and field.default == AUTO:
        return None
    return find_shown_config(field.annotation, values.get(name))


def find_shown_config(annotation: Any, value: Any) -> type[Config] | None:
    """Return the section, or the component whose fields are shown.

    That is the component that is written, else the slot's default.
    """
    inner = unwrap_annotation(annotation)
    if not isinstance(inner, type) or not issubclass(inner, Config):
        return None
    if not is_slot(inner):
        return inner
    assert issubclass(inner, ComponentConfig)
    name = value["name"] if isinstance(value, Mapping) else inner.default_name
    return registry.load_choice(inner, name) if name else None


def iter_config_lines(
    section: str, config: type[Config], values: Mapping[str, Any], style: TemplateStyle
) -> Iterator[str]:
    """Yield the settings of one section, except unavailable and deeper ones."""
    texts = get_field_docs(config)
    # a component's name first: the others are its settings
    for name, field in sorted(config.model_fields.items(), key=lambda item: item[0] != "name"):
        if not style.shows(section, name, values):
            continue
        setting = find_field_metadata(field)
        inner = unwrap_annotation(field.annotation)
        if (setting and setting.not_built) or (
            isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)
        ):
            continue
        family = config if issubclass(config, ModelConfig) else None
        yield from iter_setting_lines(
            name, field, values, texts.get(name) or "", style, family=family
        )


def iter_setting_lines(
    name: str,
    field: Any,
    values: Mapping[str, Any],
    text: str,
    style: TemplateStyle,
    *,
    family: type[ModelConfig] | None = None,
) -> Iterator[str]:
    """Yield the comment and the line of one setting."""
    yield from style.format_comment(text, format_choice_hint(name, field, family))
    if name in values:
        yield style.format_pair(name, values[name])
    else:
        yield f"#{style.format_pair(name, shorten_component(get_default_data(field)))}"


def format_choice_hint(name: str, field: Any, family: type[ModelConfig] | None) -> str:
    """Return the allowed values as a suffix of the comment."""
    inner = unwrap_annotation(field.annotation)
    words = [to_flow_yaml(option) for option in get_literal_values(inner)]
    if is_slot(inner):
        words = registry.get_choice_names(inner)
    if family is not None and name == "flavor":
        words = load_flavor_names(family)
    return f" ({format_word_list(words, max_words=99)})" if len(words) > 1 else ""


def format_comment(text: str) -> list[str]:
    """Return a text as comment lines."""
    return [f"# {line}" for line in wrap(text, WIDTH)]
