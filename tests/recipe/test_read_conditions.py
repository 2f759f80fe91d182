"""`read_when` of fields: what is declared exists, and the first failed condition is reported."""

from pathlib import Path

from titanrun import resolve_recipe
from titanrun.config.fields import ReadWhen, get_read_conditions
from titanrun.recipe.reference.schema_topics import get_topics
from titanrun.recipe.rules.no_effect import (
    DOCUMENTATION,
    FACTS,
    get_switch_value,
    iter_unread_settings,
)
from titanrun.recipe.rules.registry import RULES

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = str(RECIPES / "llama3_debug.yaml")
RL_RECIPE = str(RECIPES / "rl" / "char_share.yaml")


def declared() -> list[ReadWhen]:
    return [
        condition
        for topic in get_topics()
        for field in topic.config.model_fields.values()
        for condition in get_read_conditions(field)
    ]


def unread(*overrides: str) -> dict[str, str]:
    run = resolve_recipe(RECIPE, overrides).run
    found = iter_unread_settings(run, None, run)
    return {".".join(map(str, path)): condition.rule for condition, path in found}


def test_every_rule_id_is_declared_by_a_field_and_documented() -> None:
    assert {condition.rule for condition in declared()} == set(DOCUMENTATION)
    assert set(DOCUMENTATION) <= set(RULES)


def test_facts_and_switches_exist() -> None:
    run = resolve_recipe(RECIPE).run
    rl = resolve_recipe(RL_RECIPE).run
    assert {condition.fact for condition in declared() if condition.fact} == set(FACTS)
    for condition in declared():
        if condition.switch and not condition.switch.startswith("."):
            owner = rl if condition.switch.startswith("rl.") else run
            get_switch_value(condition.switch, owner, owner)


def test_the_first_condition_that_fails_is_reported() -> None:
    name = "checkpoint.interval"
    assert unread("checkpoint.enable=false")[name] == "settings-need-checkpoints"
    load_only = "checkpoint.load_only=true"
    assert unread("checkpoint.enable=true", load_only)[name] == "settings-need-saving"
    assert (
        unread("checkpoint.enable=false", load_only)["checkpoint.load_only"]
        == "settings-need-checkpoints"
    )
    assert name not in unread("checkpoint.enable=true")


def test_settings_inside_of_one_that_is_not_read_are_left_out() -> None:
    loader = "validation.dataloader"
    off = unread("validation.enable=false")
    assert off[loader] == "settings-need-validation"
    assert not any(name.startswith(f"{loader}.") for name in off)
    on = unread("validation.enable=true")
    assert loader not in on
    assert on[f"{loader}.prefetch_factor"] == "settings-need-loader-processes"
