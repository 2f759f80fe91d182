import pytest

from titanrun.config.pluralize import pluralize


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
