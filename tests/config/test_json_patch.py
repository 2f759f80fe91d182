"""JSON patches, judged by the examples of RFC 6902, appendix A."""

import json
from typing import Any

import pytest

from titanrun.config.json_patch import apply_patches, parse_patch

RFC_6902 = {
    "A.1": ({"foo": "bar"}, 'add /baz "qux"', {"baz": "qux", "foo": "bar"}),
    "A.2": ({"foo": ["bar", "baz"]}, 'add /foo/1 "qux"', {"foo": ["bar", "qux", "baz"]}),
    "A.3": ({"baz": "qux", "foo": "bar"}, "remove /baz", {"foo": "bar"}),
    "A.4": ({"foo": ["bar", "qux", "baz"]}, "remove /foo/1", {"foo": ["bar", "baz"]}),
    "A.5": (
        {"baz": "qux", "foo": "bar"},
        'replace /baz "boo"',
        {"baz": "boo", "foo": "bar"},
    ),
    "A.10": (
        {"foo": "bar"},
        'add /child {"grandchild": {}}',
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    "A.14, its paths": ({"/": 9, "~1": 10}, "replace /~01 11", {"/": 9, "~1": 11}),
    "A.16": ({"foo": ["bar"]}, 'add /foo/- ["abc", "def"]', {"foo": ["bar", ["abc", "def"]]}),
}


@pytest.mark.parametrize("name", RFC_6902)
def test_the_examples_of_the_standard(name: str) -> None:
    before, line, expected = RFC_6902[name]
    kept = json.dumps(before)
    assert apply_patches(before, [parse_patch(line)]) == expected
    assert json.dumps(before) == kept


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ({"foo": "bar"}, 'add /baz/bat "qux"'),  # A.12
        ({"foo": ["bar"]}, "remove /foo/-"),
        ({"foo": ["bar"]}, 'replace /foo/- "x"'),
        ({"foo": ["bar"]}, "remove /foo/1"),
        ({"foo": ["bar"]}, 'add /foo/2 "x"'),
        ({"foo": "bar"}, "replace /baz 1"),
        ({"foo": "bar"}, "remove /baz"),
    ],
)
def test_a_target_that_does_not_exist_is_an_error(before: dict[str, Any], line: str) -> None:
    with pytest.raises(KeyError):
        apply_patches(before, [parse_patch(line)])


@pytest.mark.parametrize(
    "line", ["test /foo 1", "add foo 1", "add /foo", "remove /foo 1", "add /a x"]
)
def test_what_is_no_operation_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"operation|slash|value|JSON"):
        parse_patch(line)
