"""How a path is written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path

KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)


@settings(deadline=None)
@given(st.tuples(KEYS, st.lists(KEYS | st.integers(0, 10**6), max_size=4)))
def test_a_written_path_reads_back(parts: tuple[str, list[str | int]]) -> None:
    path: DataPath = (parts[0], *parts[1])
    assert parse_path(format_path(path)) == path


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("a.", 2),
        ("a..b", 2),
        ("a[", 1),
        ("a[x]", 1),
        ("a[-1]", 1),
        ("a b", 1),
        ("a-b", 1),
        ("a.0", 2),
        ("[0]", 0),
        ("a[0]b", 4),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, offset: int) -> None:
    with pytest.raises(PathSyntaxError) as mistake:
        parse_path(text)
    assert mistake.value.offset == offset
