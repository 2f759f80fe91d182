"""Sizes of tests: medium ones take more than half a second, small ones less."""

from collections.abc import Iterable
from pathlib import Path

import pytest

MEDIUM = Path(__file__).with_name("medium_tests.txt")


def read_medium_tests() -> list[str]:
    """Read the ids of the medium tests."""
    lines = MEDIUM.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def split_by_size(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into medium and small ones, each in the order given."""
    listed = set(read_medium_tests())
    split: tuple[list[pytest.Item], list[pytest.Item]] = [], []
    for item in items:
        name = item.nodeid
        split[name not in listed and name.partition("[")[0] not in listed].append(item)
    return split
