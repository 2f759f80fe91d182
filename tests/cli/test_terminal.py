"""Text on a terminal: broken between words, below its column; whole everywhere else."""

from titanrun.cli.terminal import wrap_to_width


def test_a_long_line_goes_on_below_its_column() -> None:
    text = "models:\n  llama3  one two three four five six\n  x       short"
    assert (
        wrap_to_width(text, 30)
        == "models:\n  llama3  one two three four\n          five six\n  x       short"
    )


def test_a_paragraph_goes_on_below_its_first_word() -> None:
    assert (
        wrap_to_width("      one two three four five six seven", 26)
        == "      one two three four\n      five six seven"
    )


def test_what_cannot_be_broken_stays_whole() -> None:
    path = "a" * 50
    assert wrap_to_width(f"  read {path}", 30).split() == ["read", path]


def test_nothing_is_broken_outside_of_a_terminal() -> None:
    assert wrap_to_width("one two " * 40, None) == "one two " * 40
