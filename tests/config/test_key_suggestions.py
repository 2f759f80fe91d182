"""Which keys may be written otherwise without a question."""

from typing import Literal

import pytest

from titanrun.config.base import Config
from titanrun.config.fields import numerics, section
from titanrun.config.key_suggestions import KeySuggestions
from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.tree import DataPath, to_plain_data


class Inner(Config):
    seed: int = numerics(0)
    """A number."""
    rate: int = numerics(0)
    """Another."""
    choice: Literal["a"] | None = numerics(None)
    """A word."""
    weight: int = numerics(0)
    """A third."""


class Weighted(Config):
    weights: tuple[int, ...] = numerics(())
    """Numbers."""


class Outer(Config):
    inner: Inner = section(Inner)
    weighted: Weighted = section(Weighted)


def read_keys(text: str) -> KeySuggestions:
    root = read_source_text(SourceText("r.yaml", text), "yaml")
    return KeySuggestions(
        Outer, root, to_plain_data(root), {"lr": ("rate",), "weigt": ("rate",)}, ("lr",)
    )


@pytest.mark.parametrize(
    ("text", "path", "meant", "certain"),
    [
        ("inner: {Seed: 3}", ("inner", "Seed"), "seed", True),
        ("inner: {lr: 3}", ("inner", "lr"), "rate", True),
        ("inner: {LR: 3, seed: 4}", ("inner", "LR"), "rate", True),
        # it is a typo: one wrong letter
        ("inner: {weigth: 3}", ("inner", "weigth"), "weight", True),
        ("inner: {weigth: 3, weihgt: 3}", ("inner", "weigth"), "weight", False),
        ("inner: {weigth: 3, weight: 3}", ("inner", "weigth"), "weight", False),
        # a synonym, and a key of another section
        ("inner: {weigt: 3}", ("inner", "weigt"), "weight", False),
        ("inner: {weights: 3}", ("inner", "weights"), "weight", False),
        # it is given in another way
        ("inner: {Seed: 3, seed: 4}", ("inner", "Seed"), "seed", False),
        ("inner: {Seed: 3, SEED: 4}", ("inner", "Seed"), "seed", False),
        ("inner: {lr: 3, rate: 4}", ("inner", "lr"), "rate", False),
        ("inner: {lr: 3, Rate: 4}", ("inner", "lr"), "rate", False),
        # it is neither a spelling nor a synonym
        ("inner: {sead: 3}", ("inner", "sead"), "seed", False),
        ("inner: {lr: 3}", ("inner", "lr"), "seed", False),
        # there is no such mapping, or nothing is known of it
        ("inner: {Seed: 3}", ("innner", "Seed"), "seed", False),
        ("inner: 3", ("inner", "Seed"), "seed", False),
        ("other: {Seed: 3}", ("other", "Seed"), "seed", False),
    ],
)
def test_a_key_is_renamed_only_where_nothing_else_claims_the_name(
    text: str, path: DataPath, meant: str, certain: bool
) -> None:
    assert read_keys(text).can_rename(path, meant) == certain


def test_a_key_below_an_empty_section_is_to_be_indented() -> None:
    for text in ("inner:\nseed: 3\n", "note: 1\ninner:\nseed: 3\n"):
        meant, hint = read_keys(text).suggest_key(("seed",))
        line = 1 + text.splitlines().index("inner:")
        assert (meant, hint) == (None, f"indent it: it belongs to 'inner' in line {line}")
    # what follows the key is not what it was to stand in
    meant, hint = read_keys("seed: 3\ninner:\n").suggest_key(("seed",))
    assert "indent" not in str(hint)


def test_nothing_is_suggested_inside_of_what_nobody_declared() -> None:
    assert read_keys("other: {Seed: 3}").suggest_key(("other", "Seed")) == (None, None)


def test_a_path_with_dots_is_told_its_section() -> None:
    told = read_keys("inner.rate: 3").suggest_key(("inner.rate",))
    assert told == (None, "write rate below 'inner': dots are for the command line")


def test_a_mapping_below_a_number_gets_no_suggestion_of_its_keys() -> None:
    keys = read_keys("inner: {rate: {seed: 1}}")
    assert keys.collect_keys_inside(("inner",)) == {"seed", "rate", "choice", "weight"}
    assert keys.collect_keys_inside(("inner", "rate")) == set()
    assert keys.collect_keys_inside(("inner", "choice")) == set()


def test_a_misspelt_section_further_down_is_told_its_place() -> None:
    keys = read_keys("inner: {iner: {rate: 3}, rate: 4}")
    assert keys.suggest_key(("inner", "iner")) == (None, "did you mean 'inner', at the top level?")
    # a number is no section
    assert read_keys("inner: {iner: 3}").suggest_key(("inner", "iner")) == (None, None)


def test_a_key_whose_file_has_the_meant_key_too_is_told_the_line() -> None:
    keys = read_keys("inner:\n  rate: 1\n  lr: 3\n")
    assert keys.find_given_line(("inner", "lr"), "rate") == 2
    assert keys.find_given_line(("inner", "lr"), "seed") is None


def test_a_key_without_a_space_after_its_colon_is_told() -> None:
    told = read_keys("inner: {seed:3}").suggest_key(("inner", "seed:3"))
    assert told == (None, "write a space after the colon: seed: 3")
    # with a value of its own it is another mistake
    meant, hint = read_keys("inner: {'seed:3': 4}").suggest_key(("inner", "seed:3"))
    assert (meant, hint) == ("seed", None)
