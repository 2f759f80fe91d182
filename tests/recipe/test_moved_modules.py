"""A plug-in that imports a moved module is told the new path."""

from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import pytest

from titanrun.recipe.moved_modules import MOVED_MODULES
from titanrun.recipe.plugins import import_plugin


def test_new_modules_exist_and_old_ones_do_not() -> None:
    for old, new in MOVED_MODULES.items():
        assert find_spec(new) is not None, new
        with pytest.raises(ModuleNotFoundError):
            import_module(old)


def test_the_problem_names_the_new_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old_plugin.py").write_text("from titanrun.config.added import AddedFields\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("old", "old_plugin", "titanrun.plugins")
    problem = import_plugin("old", 0, {"old": point})
    assert problem is not None
    assert problem.code == "usage" and problem.path == ("plugins", 0)
    assert problem.hint == "the module is now titanrun.config.extension_fields"
