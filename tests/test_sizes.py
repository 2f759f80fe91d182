"""The list of medium tests, and what make runs of either size."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import sizes
from tests.sizes import read_medium_tests, split_by_size

ROOT = Path(__file__).parents[1]


def test_every_medium_test_exists() -> None:
    names = [name.partition("[")[0].split("::") for name in read_medium_tests()]
    missing = [
        (file, test)
        for file, test in names
        if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert names and not missing


def test_the_list_is_sorted_and_names_no_test_twice() -> None:
    names = read_medium_tests()
    assert names == sorted(set(names))


def test_each_test_has_one_size(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "list.txt").write_text("# why\na.py::test_all\nb.py::test_some[two]\n")
    monkeypatch.setattr(sizes, "MEDIUM", tmp_path / "list.txt")
    names = [
        "a.py::test_all[1]",
        "a.py::test_all[2]",
        "b.py::test_some[one]",
        "b.py::test_some[two]",
    ]
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    medium, small = split_by_size(items)
    assert [item.nodeid for item in medium] == [names[0], names[1], names[3]]
    assert [item.nodeid for item in small] == [names[2]]
