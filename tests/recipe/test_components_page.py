"""docs/components.md: each of its examples is a recipe, and each test it names is there."""

import sys
from pathlib import Path

import pytest

from titanrun.config.base import dump_config
from titanrun.config.serialize import to_yaml
from titanrun.recipe.reference.schema_topics import get_topics
from titanrun.recipe.resolving.resolve import resolve_recipe

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS.parent / "tools"))

from components_page import components_page, example, is_component, tried_by, whole_recipe  # noqa: E402

COMPONENTS = {topic.title: topic for topic in get_topics() if is_component(topic)}


@pytest.mark.parametrize("title", COMPONENTS)
def test_the_example_of_a_component_validates_and_names_it(title: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(whole_recipe(example(COMPONENTS[title]))), encoding="utf-8")
    resolved = resolve_recipe(str(recipe), environment={})
    # as written: `auto` becomes another one in the run
    assert f'name: "{title.partition(":")[2]}"' in to_yaml(dump_config(resolved.recipe))


def test_every_component_of_every_slot_is_on_the_page_with_a_test() -> None:
    page = components_page()
    assert [title for title in COMPONENTS if f"### {title}\n" not in page] == []
    missing = [
        title for title in COMPONENTS if not (TESTS / tried_by(title).partition("::")[0]).is_file()
    ]
    assert missing == []
