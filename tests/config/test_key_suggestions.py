"""Which keys may be written otherwise without a question."""

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


class Outer(Config):
    inner: Inner = section(Inner)


def can_rename(text: str, path: DataPath, meant: str) -> bool:
    root = read_source_text(SourceText("r.yaml", text), "yaml")
    known = KeySuggestions(Outer, root, to_plain_data(root), {"lr": ("rate",)}, ("lr",))
    return known.can_rename(path, meant)


@pytest.mark.parametrize(
    ("text", "path", "meant", "certain"),
    [
        ("inner: {Seed: 3}", ("inner", "Seed"), "seed", True),
        ("inner: {lr: 3}", ("inner", "lr"), "rate", True),
        ("inner: {LR: 3, seed: 4}", ("inner", "LR"), "rate", True),
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
    assert can_rename(text, path, meant) == certain
