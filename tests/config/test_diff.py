"""Comparing two recipes as data."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.diff import Change, compare

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
    assert compare({"x": left}, {"x": right}) == []


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
    assert compare({"x": left}, {"x": right}) == [Change(("x",), "changed", left, right)]


def test_keys_are_added_and_removed_with_their_whole_value() -> None:
    assert compare({"a": 1, "b": {"c": 2}}, {"a": 1, "d": [3]}) == [
        Change(("b",), "removed", {"c": 2}),
        Change(("d",), "added", right=[3]),
    ]


def test_another_component_is_one_change_beside_those_of_common_keys() -> None:
    left = {"optimizer": {"name": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.95}}
    right = {"optimizer": {"name": "sgd", "lr": 1e-2, "momentum": 0.9}}
    assert compare(left, right) == [
        Change(
            ("optimizer", "name"),
            "replaced",
            "adamw",
            "sgd",
            removed=("beta1", "beta2"),
            added=("momentum",),
        ),
        Change(("optimizer", "lr"), "changed", 1e-3, 1e-2),
    ]


def test_the_name_of_the_recipe_itself_is_no_component() -> None:
    assert compare({"name": "a", "x": 1}, {"name": "b"}) == [
        Change(("x",), "removed", 1),
        Change(("name",), "changed", "a", "b"),
    ]


def test_a_bare_string_is_the_component_of_that_name() -> None:
    assert compare({"optimizer": "adamw"}, {"optimizer": {"name": "adamw"}}) == []
    assert compare({"optimizer": {"name": "adamw", "lr": 1}}, {"optimizer": "adamw"}) == [
        Change(("optimizer", "lr"), "removed", 1)
    ]


def test_list_items_are_aligned_by_component_name() -> None:
    left = {"converters": ["float8", {"name": "quantise", "bits": 8}]}
    right = {"converters": ["float8", {"name": "lora", "rank": 8}, {"name": "quantise", "bits": 4}]}
    assert compare(left, right) == [
        Change(("converters", 1), "added", right={"name": "lora", "rank": 8}),
        Change(("converters", 2, "bits"), "changed", 8, 4),
    ]
    assert compare(right, left) == [
        Change(("converters", 1), "removed", {"name": "lora", "rank": 8}),
        Change(("converters", 1, "bits"), "changed", 4, 8),
    ]


def test_list_order_counts() -> None:
    assert compare(["a", "b"], ["b", "a"]) == [
        Change((0,), "added", right="b"),
        Change((1,), "removed", "b"),
    ]


def test_a_changed_item_of_a_plain_list_stays_at_its_index() -> None:
    assert compare({"x": [1, 2, 3]}, {"x": [1, 5, 3]}) == [Change(("x", 1), "changed", 2, 5)]
    assert compare({"x": [{"a": 1}, {"a": 2}]}, {"x": [{"a": 1}, {"a": 3}]}) == [
        Change(("x", 1, "a"), "changed", 2, 3)
    ]


def test_true_and_1_are_different_items() -> None:
    assert compare([True], [1]) == [Change((0,), "changed", True, 1)]


@settings(deadline=None)
@given(data)
def test_everything_equals_itself(value: object) -> None:
    assert compare(value, value) == []


@settings(deadline=None)
@given(data, data)
def test_a_difference_is_seen_from_both_sides(left: object, right: object) -> None:
    assert bool(compare(left, right)) == bool(compare(right, left))
