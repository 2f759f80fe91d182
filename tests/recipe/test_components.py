"""The mirror: every registered choice has an implementation that takes exactly its config."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from titanrun.components.data.config import MixtureDatasetConfig
from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe_field import get_example_value
from titanrun.config.field_docs import get_class_doc, get_field_docs
from titanrun.config.fields import find_field_metadata
from titanrun.config.type_introspection import find_item_type, is_slot, unwrap_annotation
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference.schema_topics import get_topics
from titanrun.recipe.rules.holdout import DOCUMENT_DATASETS

# the named runtime objects of each slot, as ARCHITECTURE lists them
KEYWORDS = {
    "model": {"seq_len"},
    "tokenizer": set(),
    "dataset": {"tokenizer", "sample_length", "cache_folder"},
    "optimizer": {"parameters"},
    "lr_scheduler": set(),
    "loss": set(),
    "activation_checkpoint": {"model"},
    "trackers": {"run_dir", "run_info"},
    "launch": {"resolved", "processes"},
    "converters": {"model", "shards"},
    "rope_scaling": {"frequencies", "theta"},
    "algorithm": {"sampling_temperature", "cp_group"},
    "correction": set(),
    "environment": {"logs"},
    "generator": {"resources"},
    "reward": {"log"},
    "module": {"replaced"},
    "task": {"eval_model"},
}


OPTIONAL_KEYWORDS = {"dataset": {"holdout", "open_stream"}, "reward": {"device"}}
"""Keywords that only some choices take: what they are about, the others do not have."""


def all_choices() -> list[type[ComponentConfig]]:
    return [
        choice
        for topic in get_topics()
        if topic.is_slot
        for choice in registry.load_choices(topic.config).values()
    ]


def all_configs(
    config: type[Config] = Recipe, above: frozenset[type[Config]] = frozenset()
) -> Iterator[type[Config]]:
    yield config
    for field in config.model_fields.values():
        for annotation in (unwrap_annotation(field.annotation), find_item_type(field.annotation)):
            if is_slot(annotation):
                for choice in registry.load_choices(annotation).values():
                    if choice not in above:
                        yield from all_configs(choice, above | {config})
            elif isinstance(annotation, type) and issubclass(annotation, Config):
                yield from all_configs(annotation, above | {config})


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_the_implementation_takes_the_config_and_the_keywords_of_its_slot(
    choice: type[ComponentConfig],
) -> None:
    parameters = dict(inspect.signature(registry.load_implementation(choice)).parameters)
    first = next(iter(parameters.values()))
    keywords = {
        name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    optional = OPTIONAL_KEYWORDS.get(choice.slot, set())
    assert keywords - optional == KEYWORDS[choice.slot]
    assert len(parameters) == len(keywords) + 1


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_no_keyword_has_the_name_of_a_field(choice: type[ComponentConfig]) -> None:
    keywords = KEYWORDS[choice.slot] | OPTIONAL_KEYWORDS.get(choice.slot, set())
    assert not keywords & set(choice.model_fields)


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_datasets_with_documents_take_the_side_of_a_split(choice: type[ComponentConfig]) -> None:
    has_documents = issubclass(choice, (*DOCUMENT_DATASETS, MixtureDatasetConfig))
    parameters = inspect.signature(registry.load_implementation(choice)).parameters
    assert ("holdout" in parameters) == has_documents


@pytest.mark.parametrize(
    "config",
    sorted(set(all_configs()), key=lambda config: config.__name__),
    ids=lambda config: config.__name__,
)
def test_every_field_declares_what_a_change_means_and_is_documented(config: type[Config]) -> None:
    documented = get_field_docs(config)
    for name, field in config.model_fields.items():
        annotation: Any = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
        holds_configs = is_slot(annotation) or (
            isinstance(annotation, type) and issubclass(annotation, Config)
        )
        assert holds_configs or find_field_metadata(field) is not None, name
        assert holds_configs or name in documented or name == "name", name
    assert get_class_doc(config)


@pytest.mark.parametrize("choice", all_choices(), ids=lambda choice: choice.__name__)
def test_the_defaults_of_every_choice_validate(choice: type[ComponentConfig]) -> None:
    required = {
        name: get_example_value(field)
        for name, field in choice.model_fields.items()
        if field.is_required() and name != "name"
    }
    assert choice.model_validate(required).load_builder() is registry.load_implementation(choice)
