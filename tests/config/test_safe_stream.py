"""Colors of our own pass, and every other control character is shown as an escape."""

from titanrun.cli.color import OFF, STYLES
from titanrun.cli.data_output import DIM, GREEN, RESET
from titanrun.config.safe_stream import escape_except_colors


def test_text_around_colors_is_kept() -> None:
    assert escape_except_colors("a \x1b[1;31mred\x1b[0m b\n") == "a \x1b[1;31mred\x1b[0m b\n"
    assert escape_except_colors("a\x1b[2Jb\x1b[0m") == "a\\u001b[2Jb\x1b[0m"
    assert escape_except_colors("plain") == "plain"


def test_each_color_of_the_command_line_passes() -> None:
    for code in (*STYLES.values(), OFF, GREEN, DIM, RESET):
        assert escape_except_colors(f"{code}text") == f"{code}text"
