"""The mirror: every registered choice has an implementation that takes exactly its config."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe import example_of
from titanrun.config.docs import class_doc, field_docs
from titanrun.config.fields import setting_of
from titanrun.config.shape import bare, is_slot, item_type
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.topics import topics

# the named runtime objects of each slot, as ARCHITECTURE lists them
KEYWORDS = {
    "model": {"seq_len"},
    "tokenizer": set(),
    "dataset": {"tokenizer", "row_length", "cache_folder"},
    "optimizer": {"parameters"},
    "lr_scheduler": set(),
    "loss": set(),
    "activation_checkpoint": {"model"},
    "trackers": {"run_dir", "tracked"},
    "launch": {"resolved", "processes"},
    "converters": {"model", "shards"},
    "rope_scaling": {"frequencies", "theta"},
    "algorithm": {"sampling_temperature", "row_ranks"},
    "environment": {"logs"},
    "generator": {"supplies"},
    "reward": {"log"},
    "module": {"replaced"},
    "task": {"subject"},
}


def all_choices() -> list[type[ComponentConfig]]:
    return [
        choice
        for topic in topics()
        if topic.is_slot
        for choice in registry.choices(topic.config).values()
    ]


def all_configs(
    config: type[Config] = Recipe, above: frozenset[type[Config]] = frozenset()
) -> Iterator[type[Config]]:
    yield config
    for field in config.model_fields.values():
        for annotation in (bare(field.annotation), item_type(field.annotation)):
            if is_slot(annotation):
                for choice in registry.choices(annotation).values():
                    if choice not in above:
                        yield from all_configs(choice, above | {config})
            elif isinstance(annotation, type) and issubclass(annotation, Config):
                yield from all_configs(annotation, above | {config})


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_the_implementation_takes_the_config_and_the_keywords_of_its_slot(
    choice: type[ComponentConfig],
) -> None:
    parameters = dict(inspect.signature(registry.implementation(choice)).parameters)
    first = next(iter(parameters.values()))
    keywords = {
        name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    assert keywords == KEYWORDS[choice.slot]
    assert len(parameters) == len(keywords) + 1


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_no_keyword_has_the_name_of_a_field(choice: type[ComponentConfig]) -> None:
    assert not KEYWORDS[choice.slot] & set(choice.model_fields)


@pytest.mark.parametrize(
    "config",
    sorted(set(all_configs()), key=lambda config: config.__name__),
    ids=lambda config: config.__name__,
)
def test_every_field_declares_what_a_change_means_and_is_documented(config: type[Config]) -> None:
    documented = field_docs(config)
    for name, field in config.model_fields.items():
        annotation: Any = item_type(field.annotation) or bare(field.annotation)
        holds_configs = is_slot(annotation) or (
            isinstance(annotation, type) and issubclass(annotation, Config)
        )
        assert holds_configs or setting_of(field) is not None, name
        assert holds_configs or name in documented or name == "name", name
    assert class_doc(config)


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_the_defaults_of_every_choice_validate(choice: type[ComponentConfig]) -> None:
    required = {
        name: example_of(field)
        for name, field in choice.model_fields.items()
        if field.is_required() and name != "name"
    }
    assert choice.model_validate(required).builder() is registry.implementation(choice)
