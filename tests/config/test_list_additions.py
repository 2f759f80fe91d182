"""Keys such as `converters+` in files, which add to the inherited list."""

from pathlib import Path

import pytest

from titanrun.config.compose import compose
from titanrun.config.list_additions import ListSchema, apply_list_additions
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.tree import find_node, to_plain_data


def composed(folder: Path, **files: str) -> object:
    """The data of `main`, over its bases."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return to_plain_data(compose(str(folder / "main.yaml")))


def test_an_addition_goes_to_the_end_of_the_inherited_list(tmp_path: Path) -> None:
    """Row C11 of the defect list."""
    base, main = "a: [1, 2]\nin: {b: [x]}\n", "extends: base.yaml\na+: [3]\nin: {b+: y}\n"
    assert composed(tmp_path, main=main, base=base) == {"a": [1, 2, 3], "in": {"b": ["x", "y"]}}


def test_every_file_of_a_chain_adds(tmp_path: Path) -> None:
    files = {
        "main": "extends: [mid.yaml, side.yaml]\na+: [4]\n",
        "mid": "extends: base.yaml\na+: [2]\n",
        "base": "a: [1]\n",
        "side": "a+: [3]\n",
    }
    assert composed(tmp_path, **files) == {"a": [1, 2, 3, 4]}


def test_additions_without_a_list_wait_for_the_default(tmp_path: Path) -> None:
    files = {"main": "extends: base.yaml\na+: [2]\n", "base": "a+: [1]\n"}
    assert composed(tmp_path, **files) == {"a+": [1, 2]}


def test_a_list_replaces_what_was_added_before_it(tmp_path: Path) -> None:
    files = {"main": "extends: base.yaml\na: [2]\n", "base": "a+: [1]\n"}
    assert composed(tmp_path, **files) == {"a": [2]}


def test_another_component_inherits_no_list(tmp_path: Path) -> None:
    base = "slot: {name: one, a: [1]}\n"
    main = "extends: base.yaml\nslot: {name: two, a+: [2]}\n"
    assert composed(tmp_path, main=main, base=base) == {"slot": {"name": "two", "a+": [2]}}


def test_items_know_the_file_that_they_came_from(tmp_path: Path) -> None:
    composed(tmp_path, main="extends: base.yaml\na+: [2]\n", base="a: [1]\n")
    root = compose(str(tmp_path / "main.yaml"))
    nodes = [find_node(root, ("a", index)) for index in range(2)]
    assert [node and Path(node.origin.source.name).name for node in nodes] == [
        "base.yaml",
        "main.yaml",
    ]


def completed(folder: Path, text: str, **bases: str) -> object:
    """The data of a recipe after additions to defaults; `a` is a list, `n` a number."""
    composed(folder, main=text, **bases)
    schema = ListSchema(
        is_list=lambda path: path[-1] == "a",
        has_field=lambda path: path[-1] in ("a", "n"),
        get_default=lambda path: {"a": ["default"], "n": 1}[str(path[-1])],
    )
    return to_plain_data(apply_list_additions(compose(str(folder / "main.yaml")), schema))


def refused(folder: Path, text: str, **bases: str) -> Problem:
    """The only problem of a recipe."""
    with pytest.raises(ProblemsFound) as found:
        completed(folder, text, **bases)
    (problem,) = found.value.problems
    return problem


def test_an_addition_without_an_inherited_list_adds_to_the_default(tmp_path: Path) -> None:
    assert completed(tmp_path, "a+: [1]\n") == {"a": ["default", 1]}
    assert completed(tmp_path, "list: [{a+: 1}]\n") == {"list": [{"a": ["default", 1]}]}


def test_a_list_and_its_addition_in_one_place_are_a_problem(tmp_path: Path) -> None:
    problem = refused(tmp_path, "extends: base.yaml\na: [1]\na+: [2]\n", base="a: [0]\n")
    assert (problem.code, problem.path) == ("duplicate-key", ("a",))
    assert problem.message == "'a' and 'a+' are given in one place"
    assert problem.origin is not None
    assert problem.origin.line == 3


def test_nothing_is_added_to_what_is_no_list(tmp_path: Path) -> None:
    assert refused(tmp_path, "n+: 5\n").message == "n is not a list: nothing can be added to it"
    problem = refused(tmp_path, "extends: base.yaml\na+: [1]\n", base="a: null\n")
    assert problem.message == "a is null, not a list: nothing can be added to it"
    assert problem.hint == "write a without the +"


def test_an_unknown_key_stays_for_validation(tmp_path: Path) -> None:
    assert completed(tmp_path, "b+: [1]\n") == {"b+": [1]}
