import pytest

from titanrun.config.pluralize import make_singular, pluralize


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (pluralize(0, "row"), "0 rows"),
        (pluralize(1, "row"), "1 row"),
        (pluralize(2048, "pass", "passes"), "2,048 passes"),
        (pluralize(1.0, "epoch"), "1 epoch"),
        (pluralize(0.9333333, "epoch"), "0.9333 epochs"),
    ],
)
def test_a_noun_agrees_with_its_number(count: str, words: str) -> None:
    assert count == words


@pytest.mark.parametrize(
    ("unit", "single"),
    [("ranks", "rank"), ("processes", "process"), ("batches", "batch"), ("bytes", "byte")],
)
def test_one_of_a_unit_is_singular(unit: str, single: str) -> None:
    assert make_singular(unit) == single
