"""Canonical YAML, and TOML."""

import math

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_value_text
from titanrun.config.serialize import to_toml, to_yaml
from titanrun.config.tree import to_plain_data

INT64 = st.integers(-(2**63), 2**63 - 1)
ODD_TEXT = st.sampled_from(
    [
        "",
        "null",
        "true",
        "on",
        "1e3",
        "010",
        "a: b",
        "- x",
        "#",
        "\x7f\x85\u2028\u2029\ufeff\ufffe\uffff",
        "\r\n\t\0",
        "🙂",
    ]
)
TEXT = st.text(max_size=8) | ODD_TEXT
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,6}", fullmatch=True) | TEXT.filter(
    lambda text: text != "<<"
)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)
RECIPES = st.dictionaries(KEYS, VALUES, max_size=5)


def read(text: str) -> object:
    """What a reader of recipes sees in a text."""
    return to_plain_data(read_value_text(SourceText("r.yaml", text)))


def typed(value: object) -> object:
    """A form in which 1, 1.0 and true differ, and 0.0 and -0.0."""
    if isinstance(value, dict):
        return {key: typed(child) for key, child in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, repr(value)


def with_null_as_text(value: object) -> object:
    """What TOML makes of null."""
    if isinstance(value, dict):
        return {key: with_null_as_text(child) for key, child in value.items()}
    if isinstance(value, list):
        return [with_null_as_text(item) for item in value]
    return "null" if value is None else value


@settings(deadline=None)
@given(RECIPES)
def test_yaml_reads_back_with_types_and_emits_the_same_bytes(data: dict[str, object]) -> None:
    text = to_yaml(data)
    back = read(text)
    assert typed(back) == typed(data)
    assert to_yaml(back) == text  # type: ignore[arg-type]


@settings(deadline=None)
@given(RECIPES)
def test_toml_reads_back_with_types(data: dict[str, object]) -> None:
    assert typed(tomli.loads(to_toml(data))) == typed(with_null_as_text(data))


def test_the_form_is_canonical() -> None:
    data = {
        "version": 1,
        "name": 'naïve "x"',
        "optimizer": {"name": "adamw", "eps": 1e-08, "betas": (0.9, 0.95)},
        "converters": [{"name": "lora", "options": {"rank": 8}}, "float8", [[], [1, 2]], {}],
        "none": [],
        "on": None,
        "two words": True,
    }
    assert to_yaml(data) == (
        "version: 1\n"
        'name: "naïve \\"x\\""\n'
        "optimizer:\n"
        '  name: "adamw"\n'
        "  eps: 1e-08\n"
        "  betas:\n"
        "    - 0.9\n"
        "    - 0.95\n"
        "converters:\n"
        '  - name: "lora"\n'
        "    options:\n"
        "      rank: 8\n"
        '  - "float8"\n'
        "  - - []\n"
        "    - - 1\n"
        "      - 2\n"
        "  - {}\n"
        "none: []\n"
        '"on": null\n'
        '"two words": true\n'
    )


@pytest.mark.parametrize(
    "number",
    [
        1e-08,
        1e16,
        1e22,
        1.5e-300,
        5e-324,
        1.7976931348623157e308,
        -0.0,
        1.0,
        0.1,
        math.inf,
        -math.inf,
    ],
)
def test_floats_come_back_as_the_same_floats(number: float) -> None:
    assert typed(read(to_yaml({"x": number}))) == typed({"x": number})
    assert typed(tomli.loads(to_toml({"x": number}))) == typed({"x": number})


def test_nan_comes_back() -> None:
    assert ": .nan\n" in to_yaml({"x": math.nan})
    assert "= nan\n" in to_toml({"x": math.nan})


def test_characters_that_readers_drop_are_escaped() -> None:
    assert (
        to_yaml({"x": "\x7f\x80\x85\x9f\u2028\u2029\ufeff"})
        == 'x: "\\u007f\\u0080\\u0085\\u009f\\u2028\\u2029\\ufeff"\n'
    )


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    for data in ({"x": text}, {text: 1}):
        with pytest.raises(ValueError, match="surrogate"):
            to_yaml(data)


@pytest.mark.parametrize("value", [object(), b"x", {1: 2}, {"a"}])
def test_what_a_recipe_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        to_yaml({"x": value})


def test_an_empty_recipe_is_an_empty_mapping() -> None:
    assert to_yaml({}) == "{}\n"
    assert to_toml({}) == ""


def test_toml_writes_sections_as_tables() -> None:
    data = {
        "training": {"steps": 5, "rope": {"theta": 1e4}},
        "name": "a",
        "converters": [{"name": "lora", "x": None}, {"name": "b"}],
        "plugins": [],
    }
    assert to_toml(data) == (
        'name = "a"\nplugins = []\n\n[training]\nsteps = 5\n\n[training.rope]\ntheta = 10000.0\n\n'
        '[[converters]]\nname = "lora"\nx = "null"\n\n[[converters]]\nname = "b"\n'
    )
