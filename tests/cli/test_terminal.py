"""Text on a terminal: broken between words, below its column; whole everywhere else."""

from titanrun.cli.terminal import fitted


def test_a_long_line_goes_on_below_its_column() -> None:
    text = "models:\n  llama3  one two three four five six\n  x       short"
    assert (
        fitted(text, 30)
        == "models:\n  llama3  one two three four\n          five six\n  x       short"
    )


def test_a_paragraph_goes_on_below_its_first_word() -> None:
    assert (
        fitted("      one two three four five six seven", 26)
        == "      one two three four\n      five six seven"
    )


def test_what_cannot_be_broken_stays_whole() -> None:
    path = "a" * 50
    assert fitted(f"  read {path}", 30).split() == ["read", path]


def test_nothing_is_broken_outside_of_a_terminal() -> None:
    assert fitted("one two " * 40, None) == "one two " * 40
