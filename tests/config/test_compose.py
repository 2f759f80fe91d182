"""A recipe over the files it extends."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from titanrun.config.compose import MAX_EXTENDS_DEPTH, compose
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.tree import Node, find_node, to_plain_data


def write(folder: Path, files: Mapping[str, str]) -> str:
    """The path of the first of `files`, all written below `folder`."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder / next(iter(files)))


def composed(folder: Path, **files: str) -> object:
    """The data of `main`, over its bases."""
    return to_plain_data(
        compose(write(folder, {f"{name}.yaml": text for name, text in files.items()}))
    )


def problems(path: str) -> tuple[Problem, ...]:
    """What is wrong with a recipe."""
    with pytest.raises(ProblemsFound) as found:
        compose(path)
    return found.value.problems


def at(root: Node, *path: str | int) -> Node:
    """The node at a path that is there."""
    node = find_node(root, path)
    assert node is not None
    return node


def test_a_recipe_without_extends_is_itself(tmp_path: Path) -> None:
    assert composed(tmp_path, main="a: 1\nb: [1, 2]\n") == {"a": 1, "b": [1, 2]}


def test_mappings_merge_deeply_and_lists_and_scalars_replace(tmp_path: Path) -> None:
    base = "training: {steps: 5, seq_len: 256, inner: {a: 1, b: 2}}\nlist: [1, 2]\nkept: true\n"
    main = "extends: base.yaml\ntraining: {steps: 9, inner: {b: 3}}\nlist: [3]\n"
    assert composed(tmp_path, main=main, base=base) == {
        "training": {"steps": 9, "seq_len": 256, "inner": {"a": 1, "b": 3}},
        "list": [3],
        "kept": True,
    }


def test_later_bases_win_and_the_recipe_wins_over_all(tmp_path: Path) -> None:
    files = {
        "main": "extends: [one.yaml, two.yaml]\na: 0\n",
        "one": "a: 1\nb: 1\nc: 1\n",
        "two": "a: 2\nb: 2\n",
    }
    assert composed(tmp_path, **files) == {"a": 0, "b": 2, "c": 1}


def test_paths_are_relative_to_the_including_file(tmp_path: Path) -> None:
    files = {
        "runs/main.yaml": "extends: ../parts/big.yaml\n",
        "parts/big.yaml": "extends: small/inner.yaml\n",
        "parts/small/inner.yaml": "a: 1\n",
    }
    assert to_plain_data(compose(write(tmp_path, files))) == {"a": 1}


def test_the_names_of_files_stay_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path, {"runs/main.yaml": "extends: ../parts/base.yaml\n", "parts/base.yaml": "a: 1\n"}
    )
    monkeypatch.chdir(tmp_path)
    assert at(compose("runs/main.yaml"), "a").origin.source.name == "parts/base.yaml"


def test_toml_and_yaml_extend_one_another(tmp_path: Path) -> None:
    files = {
        "main.toml": 'extends = "mid.yaml"\n[training]\nsteps = 3\n',
        "mid.yaml": "extends: base.toml\nb: 1\n",
        "base.toml": "[training]\nseq = 8\n",
    }
    assert to_plain_data(compose(write(tmp_path, files))) == {
        "training": {"seq": 8, "steps": 3},
        "b": 1,
    }


def test_another_name_replaces_the_whole_component(tmp_path: Path) -> None:
    base = "optimizer: {name: adamw, lr: 1, beta1: 0.9}\nname: base\nkept: 1\n"
    main = "extends: base.yaml\nname: main\noptimizer: {name: sgd, lr: 2}\n"
    assert composed(tmp_path, main=main, base=base) == {
        "optimizer": {"name": "sgd", "lr": 2},
        "name": "main",
        "kept": 1,
    }


@pytest.mark.parametrize(
    ("base", "own", "result"),
    [
        ("{name: adamw, lr: 1}", "{name: adamw, beta1: 2}", {"name": "adamw", "lr": 1, "beta1": 2}),
        ("{name: adamw, lr: 1}", "{beta1: 2}", {"name": "adamw", "lr": 1, "beta1": 2}),
        ("{name: adamw, lr: 1}", "sgd", "sgd"),
        ("{name: adamw, lr: 1}", "adamw", "adamw"),
        ("sgd", "{name: adamw, lr: 1}", {"name": "adamw", "lr": 1}),
        ("sgd", "{lr: 1}", {"name": "sgd", "lr": 1}),
        ("auto", "{lr: 1}", {"lr": 1}),
        ("null", "{lr: 1}", {"lr": 1}),
        ("{lr: 1}", "null", None),
        ("[{name: a}]", "[{name: b}]", [{"name": "b"}]),
    ],
)
def test_bare_names_and_mappings(tmp_path: Path, base: str, own: str, result: object) -> None:
    assert composed(
        tmp_path, main=f"extends: base.yaml\nslot: {own}\n", base=f"slot: {base}\n"
    ) == {"slot": result}


def test_anchors_may_stand_under_x_keys_that_are_dropped(tmp_path: Path) -> None:
    files = {
        "main": "extends: base.yaml\nx-own: &own {a: 1}\nsection: *own\n",
        "base": "x-base: &base 5\nb: *base\n",
    }
    assert composed(tmp_path, **files) == {"b": 5, "section": {"a": 1}}


def test_values_remember_what_they_shadow_nearest_first(tmp_path: Path) -> None:
    files = {
        "main.yaml": "extends: mid.yaml\ntraining:\n  steps: 3\n",
        "mid.yaml": "extends: base.yaml\ntraining:\n  steps: 2\n",
        "base.yaml": "training:\n  steps: 1\n  seq_len: 4\n",
    }
    root = compose(write(tmp_path, files))
    steps = at(root, "training", "steps")
    assert [
        Path(origin.source.name).name for origin in (steps.origin, *steps.shadowed_origins)
    ] == [
        "main.yaml",
        "mid.yaml",
        "base.yaml",
    ]
    assert at(root, "training", "seq_len").shadowed_origins == ()
    assert at(root, "training").shadowed_origins == ()


def test_a_replaced_component_is_shadowed_with_its_keys(tmp_path: Path) -> None:
    files = {
        "main.yaml": "extends: base.yaml\no: {name: sgd, lr: 2}\n",
        "base.yaml": "\no: {name: adamw, lr: 1}\n",
    }
    root = compose(write(tmp_path, files))
    for path in [("o",), ("o", "name"), ("o", "lr")]:
        assert [origin.line for origin in at(root, *path).shadowed_origins] == [2]


def test_a_shared_base_shadows_nothing_of_its_own(tmp_path: Path) -> None:
    files = {
        "main.yaml": "extends: [a.yaml, b.yaml]\n",
        "a.yaml": "extends: c.yaml\n",
        "b.yaml": "extends: c.yaml\n",
        "c.yaml": "x: {y: 1}\n",
    }
    assert at(compose(write(tmp_path, files)), "x", "y").shadowed_origins == ()


def test_doubling_includes_are_read_once_each(tmp_path: Path) -> None:
    files = {
        f"{level}.yaml": f"extends: [{level + 1}.yaml, {level + 1}.yaml]\na{level}: 1\n"
        for level in range(40)
    }
    assert len(compose(write(tmp_path, {**files, "40.yaml": "b: 1\n"})).value) == 41  # type: ignore[arg-type]


def test_a_cycle_shows_its_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        {
            "main.yaml": "extends: a.yaml\n",
            "a.yaml": "b: 1\nextends: sub/b.yaml\n",
            "sub/b.yaml": "extends: ['../a.yaml']\n",
        },
    )
    monkeypatch.chdir(tmp_path)
    (problem,) = problems("main.yaml")
    assert problem.code == "cycle"
    assert problem.message == "circular extends: a.yaml -> sub/b.yaml -> a.yaml"
    assert str(problem.origin) == "sub/b.yaml:1:11"
    assert [str(related.origin) for related in problem.related] == ["a.yaml:2:10"]


def test_a_file_that_extends_itself_is_a_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"main.yaml": "extends: main.yaml\n"})
    monkeypatch.chdir(tmp_path)
    assert [problem.message for problem in problems("main.yaml")] == [
        "circular extends: main.yaml -> main.yaml"
    ]


def test_a_missing_base_is_shown_where_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"main.yaml": "a: 1\nextends: [nowhere.yaml]\n"})
    (problem,) = problems(path)
    assert problem.code == "file"
    assert str(problem.origin) == f"{path}:2:11"
    assert "nowhere.yaml" in problem.message


def test_problems_of_all_files_come_at_once_and_know_who_included_them(tmp_path: Path) -> None:
    files = {
        "main.yaml": "extends: [a.yaml, b.yaml, gone.yaml, 5]\n",
        "a.yaml": "x: 1\nx: 2\n",
        "b.yaml": "y: [\n",
    }
    path = write(tmp_path, files)
    found = problems(path)
    assert {problem.code for problem in found} == {"duplicate-key", "syntax", "file", "wrong-type"}
    duplicate = next(problem for problem in found if problem.code == "duplicate-key")
    assert duplicate.origin is not None
    assert duplicate.origin.line == 2
    assert str(duplicate.origin.source.included_from) == f"{path}:1:11"


def test_a_broken_base_is_reported_once_however_often_it_is_named(tmp_path: Path) -> None:
    assert (
        len(
            problems(
                write(
                    tmp_path, {"main.yaml": "extends: [a.yaml, a.yaml]\n", "a.yaml": "x: 1\nx: 2\n"}
                )
            )
        )
        == 1
    )


@pytest.mark.parametrize("value", ["5", "null", "{a: b}", "''", "[[a.yaml]]"])
def test_extends_takes_paths_only(tmp_path: Path, value: str) -> None:
    (problem,) = problems(write(tmp_path, {"main.yaml": f"extends: {value}\n"}))
    assert (problem.code, problem.path) == ("wrong-type", ("extends",))


def test_extends_cannot_hold_references(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path, {"main.yaml": "extends: ${env:BASE}\n"}))
    assert problem.code == "interpolation"


def test_an_endless_chain_is_cut(tmp_path: Path) -> None:
    files = {f"{level}.yaml": f"extends: {level + 1}.yaml\n" for level in range(70)}
    assert [problem.code for problem in problems(write(tmp_path, files))] == ["limit"]


def test_the_longest_chain_is_read(tmp_path: Path) -> None:
    deepest = MAX_EXTENDS_DEPTH - 1
    files = {f"{level}.yaml": f"extends: {level + 1}.yaml\n" for level in range(deepest)}
    files[f"{deepest}.yaml"] = "found: true\n"
    assert to_plain_data(compose(write(tmp_path, files))) == {"found": True}
    files[f"{deepest}.yaml"] = f"extends: {deepest + 1}.yaml\n"
    files[f"{deepest + 1}.yaml"] = "found: true\n"
    assert [problem.code for problem in problems(write(tmp_path, files))] == ["limit"]


def test_a_base_in_a_named_folder_stays_in_it(tmp_path: Path) -> None:
    shelf = {"parts": tmp_path / "parts"}
    write(tmp_path, {"parts/fast.yaml": "a: 1\n", "outside.yaml": "a: 2\n"})

    def read(base: str) -> object:
        return to_plain_data(
            compose(write(tmp_path, {"main.yaml": f"extends: {base}\n"}), named_folders=shelf)
        )

    assert read("parts:fast.yaml") == {"a": 1}
    for outside in ("parts:../outside.yaml", f"parts:{tmp_path}/outside.yaml"):
        with pytest.raises(ProblemsFound) as found:
            read(outside)
        assert found.value.problems[0].message == f"file not found: {outside}"
    with pytest.raises(ProblemsFound) as found:
        read("parts:fats.yaml")
    (problem,) = found.value.problems
    assert (problem.message, problem.hint, problem.suggestion) == (
        "file not found: parts:fats.yaml",
        "did you mean 'parts:fast.yaml'?",
        "parts:fast.yaml",
    )
    assert problem.origin is not None and problem.origin.line == 1


@pytest.mark.parametrize(
    ("base", "hint"),
    [
        ("parts:fast", "did you mean 'parts:fast.yaml'?"),
        ("fast", "did you mean 'parts:fast.yaml'?"),
        ("https://host/fast.yaml", "extends reads local files: download it first"),
    ],
)
def test_a_base_without_its_suffix_or_on_a_server_is_told(
    tmp_path: Path, base: str, hint: str
) -> None:
    # the toml file of the same name is as near
    files = {"parts/fast.yaml": "a: 1\n", "parts/fast.toml": "a = 1\n"}
    main = write(tmp_path, {"main.yaml": f"extends: {base}\n", **files})
    with pytest.raises(ProblemsFound) as found:
        compose(main, named_folders={"parts": tmp_path / "parts"})
    (problem,) = found.value.problems
    assert (problem.message, problem.hint) == (f"file not found: {base}", hint)


@pytest.mark.parametrize("base", ['"\\0"', "loop.yaml", "x" * 300 + ".yaml", "folder.yaml"])
def test_a_base_that_cannot_be_read_is_one_problem(tmp_path: Path, base: str) -> None:
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (problem,) = problems(write(tmp_path, {"main.yaml": f"extends: {base}\n"}))
    assert problem.code == "file"
    assert problem.origin is not None
    assert problem.origin.line == 1
