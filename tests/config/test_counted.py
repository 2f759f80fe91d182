import pytest

from titanrun.config.counted import counted


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (counted(0, "row"), "0 rows"),
        (counted(1, "row"), "1 row"),
        (counted(2048, "pass", "passes"), "2,048 passes"),
        (counted(1.0, "epoch"), "1 epoch"),
        (counted(0.9333333, "epoch"), "0.9333 epochs"),
    ],
)
def test_a_noun_agrees_with_its_number(count: str, words: str) -> None:
    assert count == words
