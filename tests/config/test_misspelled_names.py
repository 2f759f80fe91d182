"""A misspelled name is read as another one only where that is certain."""

import pytest

from titanrun.config.misspelled_names import is_certain_name

NAMES = ["adam", "adamw", "muon", "sgd"]


@pytest.mark.parametrize(
    ("written", "meant", "is_certain"),
    [
        ("muom", "muon", True),
        ("AdamW", "adamw", True),
        # as near to adam
        ("adamx", "adamw", False),
        ("muom", "sgd", False),
    ],
)
def test_a_single_near_name_is_certain(written: str, meant: str, is_certain: bool) -> None:
    assert is_certain_name(written, meant, NAMES) is is_certain
