"""Comparing two recipes as data."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.data_diff import DataChange, diff_data

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
data = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "a", "b"]), inner)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("left", "right"),
    [(3e-4, 0.0003), (1, 1.0), (10**6, 1e6), (math.nan, math.nan), (-0.0, 0), ([], ()), ("a", "a")],
)
def test_equal_values_are_no_change(left: object, right: object) -> None:
    assert diff_data({"x": left}, {"x": right}) == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, "1"),
        (1, True),
        (0, False),
        (None, "null"),
        (None, 0),
        ("", None),
        ([], {}),
        (1, 2),
        ([1], 1),
    ],
)
def test_values_of_another_kind_differ(left: object, right: object) -> None:
    assert diff_data({"x": left}, {"x": right}) == [DataChange(("x",), "changed", left, right)]


def test_keys_are_added_and_removed_with_their_whole_value() -> None:
    assert diff_data({"a": 1, "b": {"c": 2}}, {"a": 1, "d": [3]}) == [
        DataChange(("b",), "removed", {"c": 2}),
        DataChange(("d",), "added", right=[3]),
    ]


def test_another_component_is_one_change_beside_those_of_common_keys() -> None:
    left = {"optimizer": {"name": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.95}}
    right = {"optimizer": {"name": "sgd", "lr": 1e-2, "momentum": 0.9}}
    assert diff_data(left, right) == [
        DataChange(
            ("optimizer", "name"),
            "replaced",
            "adamw",
            "sgd",
            removed_keys=("beta1", "beta2"),
            added_keys=("momentum",),
        ),
        DataChange(("optimizer", "lr"), "changed", 1e-3, 1e-2),
    ]


def test_the_name_of_the_recipe_itself_is_no_component() -> None:
    assert diff_data({"name": "a", "x": 1}, {"name": "b"}) == [
        DataChange(("x",), "removed", 1),
        DataChange(("name",), "changed", "a", "b"),
    ]


def test_a_bare_string_is_the_component_of_that_name() -> None:
    assert diff_data({"optimizer": "adamw"}, {"optimizer": {"name": "adamw"}}) == []
    assert diff_data({"optimizer": {"name": "adamw", "lr": 1}}, {"optimizer": "adamw"}) == [
        DataChange(("optimizer", "lr"), "removed", 1)
    ]


def test_list_items_are_aligned_by_component_name() -> None:
    left = {"converters": ["float8", {"name": "quantise", "bits": 8}]}
    right = {"converters": ["float8", {"name": "lora", "rank": 8}, {"name": "quantise", "bits": 4}]}
    assert diff_data(left, right) == [
        DataChange(("converters", 1), "added", right={"name": "lora", "rank": 8}),
        DataChange(("converters", 2, "bits"), "changed", 8, 4),
    ]
    assert diff_data(right, left) == [
        DataChange(("converters", 1), "removed", {"name": "lora", "rank": 8}),
        DataChange(("converters", 1, "bits"), "changed", 4, 8),
    ]


def test_list_order_counts() -> None:
    assert diff_data(["a", "b"], ["b", "a"]) == [
        DataChange((0,), "added", right="b"),
        DataChange((1,), "removed", "b"),
    ]


def test_a_changed_item_of_a_plain_list_stays_at_its_index() -> None:
    assert diff_data({"x": [1, 2, 3]}, {"x": [1, 5, 3]}) == [DataChange(("x", 1), "changed", 2, 5)]
    assert diff_data({"x": [{"a": 1}, {"a": 2}]}, {"x": [{"a": 1}, {"a": 3}]}) == [
        DataChange(("x", 1, "a"), "changed", 2, 3)
    ]


def test_true_and_1_are_different_items() -> None:
    assert diff_data([True], [1]) == [DataChange((0,), "changed", True, 1)]


@settings(deadline=None)
@given(data)
def test_everything_equals_itself(value: object) -> None:
    assert diff_data(value, value) == []


@settings(deadline=None)
@given(data, data)
def test_a_difference_is_seen_from_both_sides(left: object, right: object) -> None:
    assert bool(diff_data(left, right)) == bool(diff_data(right, left))
