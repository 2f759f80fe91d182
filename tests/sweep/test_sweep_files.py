"""What a sweep file makes of its values, and what is said about its mistakes."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrun.cli import sweep as sweep_command
from titanrun.cli import validate
from titanrun.config.problems import ProblemsFound
from titanrun.config.tree import to_plain_data
from titanrun.sweep.run_names import MAX_NAME_LENGTH, build_point_names
from titanrun.sweep.search_points import build_planner, validate_space
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.validate_points import PlannedRun, select_distinct_builds, validate_points

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"


def written(folder: Path, text: str) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(f"version: 1\nrecipe: {RECIPE}\n{text}", encoding="utf-8")
    return file


def tried(file: Path) -> list[dict[str, object]]:
    return [
        {path: to_plain_data(node) for path, node in point.items()}
        for point in read_sweep(file).points
    ]


def runs(file: Path, *changes: str) -> list[PlannedRun]:
    return validate_points(read_sweep(file), changes, {})[0]


def said(file: Path, *changes: str) -> list[str]:
    """Each problem as `line:column code: message (help)`."""
    try:
        sweep = read_sweep(file)
        if sweep.search is None:
            found = validate_points(sweep, changes, {})[1]
        else:
            found = validate_space(build_planner(sweep, changes, {}))[1]
    except ProblemsFound as error:
        found = list(error.problems)
    for problem in found:
        assert problem.origin is not None and problem.origin.source.name == str(file), problem
    return [
        f"{item.origin.line}:{item.origin.column} {item.code}: {item.message} ({item.hint})"
        for item in found
    ]  # type: ignore[union-attr]


def test_every_value_of_a_grid_meets_every_other(tmp_path: Path) -> None:
    file = written(tmp_path, "grid: {optimizer.lr: [1.0e-3, 2.0e-3], debug: {seed: [1, 2, 3]}}")
    assert tried(file) == [
        {"optimizer.lr": lr, "debug.seed": seed} for lr in (1e-3, 2e-3) for seed in (1, 2, 3)
    ]


def test_zip_and_list_keep_values_together_and_meet_the_rest(tmp_path: Path) -> None:
    text = (
        "zip: {model.dim: [64, 128], model.n_layers: [2, 4]}\nlist: [{optimizer.lr: 1.0e-3}, "
        "{optimizer.lr: 2.0e-3, debug.seed: 7}]"
    )
    sizes = [{"model.dim": 64, "model.n_layers": 2}, {"model.dim": 128, "model.n_layers": 4}]
    items = [{"optimizer.lr": 1e-3}, {"optimizer.lr": 2e-3, "debug.seed": 7}]
    assert tried(written(tmp_path, text)) == [size | item for size in sizes for item in items]


def test_random_points_are_the_same_every_time_and_each_path_has_its_own(tmp_path: Path) -> None:
    draws = (
        "optimizer.lr: {log_uniform: [1.0e-5, 1.0e-2]}, optimizer.weight_decay: {uniform: [0, "
        "1]}, model.n_layers: {integer: [1, 8]}"
    )
    text = f"random: {{count: 50, seed: 3, values: {{{draws}}}}}"
    points = tried(written(tmp_path, text))
    assert tried(written(tmp_path, text)) == points
    more = tried(
        written(tmp_path, text.replace("values: {", "values: {debug.seed: {choice: [1, 2]}, "))
    )
    assert [
        {path: value for path, value in point.items() if path != "debug.seed"} for point in more
    ] == points
    assert {point["debug.seed"] for point in more} == {1, 2}
    assert tried(written(tmp_path, text.replace("seed: 3", "seed: 4"))) != points
    rates = sorted(point["optimizer.lr"] for point in points)  # type: ignore[type-var]
    assert 1e-5 <= rates[0] < 1e-4 and 1e-3 < rates[-1] <= 1e-2
    # as many below the middle of the orders of magnitude as above it, up to chance
    assert 10 < sum(rate < 10**-3.5 for rate in rates) < 40  # type: ignore[operator]
    assert {type(point["model.n_layers"]) for point in points} == {int} and all(
        0 <= point["optimizer.weight_decay"] <= 1 for point in points
    )  # type: ignore[operator]


def test_filters_look_at_the_points_and_at_the_recipe(tmp_path: Path) -> None:
    text = (
        "filters: [optimizer.lr < 0.004, model.n_layers <= training.local_batch_size]\nmax_runs: "
        "3\n"
    )
    text += "grid: {optimizer.lr: [1.0e-3, 5.0e-3, 2.0e-3], model.n_layers: [4, 16, 2]}"
    found = [tuple(run.values.values()) for run in runs(written(tmp_path, text))]
    assert found == [(1e-3, 4), (1e-3, 2), (2e-3, 4)]


@pytest.mark.parametrize(
    ("condition", "grid", "kept"),
    [
        # a default that the recipe does not write
        ("optimizer.weight_decay <= 0.1", "{debug.seed: [1]}", [1]),
        ("optimizer.weight_decay == optimizer.weight_decay", "{debug.seed: [1]}", [1]),
        # a size of a flavor
        ("model.n_heads == 16", "{debug.seed: [1]}", [1]),
        # a unit, and a warmup that `auto` decides: a tenth of the steps
        ("training.tokens <= 20000000", "{training.tokens: [10M, 1B]}", ["10M"]),
        ("training.tokens > 0.5B", "{training.tokens: [10M, 1B]}", ["1B"]),
        ("checkpoint.interval < 2h", "{checkpoint.interval: [30m, 3h]}", ["30m"]),
        ("lr_scheduler.warmup_steps < 5", "{training.steps: [30, 90]}", [30]),
    ],
)
def test_filters_compare_resolved_values(
    condition: str, grid: str, kept: list[object], tmp_path: Path
) -> None:
    """Row A16: a filter found only what the recipe writes."""
    file = tmp_path / "sweep.yaml"
    (tmp_path / "recipe.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    file.write_text(f"version: 1\nrecipe: recipe.yaml\nfilters: ['{condition}']\ngrid: {grid}\n")
    assert [next(iter(run.values.values())) for run in runs(file)] == kept


def test_a_filter_excludes_points_that_are_not_valid(tmp_path: Path) -> None:
    text = "grid: {model.n_heads: [4, 5], model.n_kv_heads: [2]}"
    with_filter = written(tmp_path, f"filters: [model.n_heads != 5]\n{text}")
    assert [run.values["model.n_heads"] for run in runs(with_filter)] == [4]
    problems = said(written(tmp_path, f"filters: [optimizer.weight_decay < 1]\n{text}"))
    assert problems and all("n_heads" in problem for problem in problems)


def test_runs_are_named_by_what_varies(tmp_path: Path) -> None:
    text = (
        "folder: out\noverrides: [training.steps=9]\ngrid: {optimizer.lr: [1.0e-3, 2.0e-3], "
        "debug.seed: [1]}"
    )
    first, second = runs(written(tmp_path, text), "debug.deterministic=true")
    assert (str(first.folder), str(second.folder)) == ("out/lr=0.001", "out/lr=0.002")
    assert first.arguments == [
        "training.steps=9",
        "debug.deterministic=true",
        "optimizer.lr=0.001",
        "debug.seed=1",
        "dump_folder=out/lr=0.001",
    ]
    assert first.resolved.run.training.steps == 9


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a.lr", "b.lr", "b.seed", "name"]),
            st.text(max_size=60) | st.integers() | st.floats() | st.lists(st.integers()),
        ),
        min_size=1,
        max_size=8,
        unique_by=repr,
    )
)
def test_no_two_names_are_alike_and_each_is_one_folder(points: list[dict[str, object]]) -> None:
    names = build_point_names(points)
    assert len(set(names)) == len(points)
    assert all(
        0 < len(name) <= MAX_NAME_LENGTH + 7 and "/" not in name and name not in (".", "..")
        for name in names
    )


def test_only_different_models_are_built_before_the_start(tmp_path: Path) -> None:
    found = runs(
        written(
            tmp_path,
            "grid: {optimizer.lr: [1.0e-3, 2.0e-3], debug.seed: [1, 2], model.n_layers: [2, 4]}",
        )
    )
    assert [run.values["model.n_layers"] for run in select_distinct_builds(found)] == [2, 4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "grid: {optimizer.lr: [1.0e-3, -2.0e-3, fast], debug.sed: [1]}",
            [
                "3:31 out-of-range: -0.002 is not above 0 (None)",
                "3:40 wrong-type: expected a number, got text 'fast' (write a "
                "number; the default is 0.0008)",
                "3:47 unknown-key: unknown key 'sed' in section 'debug' (did you mean 'seed'?)",
            ],
        ),
        # Row C2 of the defect list: as many problems as values, each at a value
        (
            "grid: {optimizer.lrr: [1.0e-3, 1.0e-4]}",
            ["3:8 unknown-key: unknown key 'lrr' in optimizer 'adamw' (did you mean 'lr'?)"],
        ),
        (
            "zip: {debug.seed: [1, 2], optimizer: {lrr: [1.0e-3, 1.0e-4]}}",
            ["3:39 unknown-key: unknown key 'lrr' in optimizer 'adamw' (did you mean 'lr'?)"],
        ),
        (
            "random: {count: 2, values: {debug.sed: {choice: [1, 2]}}}",
            ["3:29 unknown-key: unknown key 'sed' in section 'debug' (did you mean 'seed'?)"],
        ),
        (
            "grid: {training.steps.x: [3, 4]}",
            ["3:8 usage: training.steps is 80, which has no keys (set training.steps itself)"],
        ),
        (
            "overrides: [training.stepz=3]\ngrid: {debug.seed: [1]}",
            ["3:13 unknown-key: unknown key 'stepz' in section 'training' (did you mean 'steps'?)"],
        ),
        (
            "slot: 2\ngrid: {debug.seed: [1]}",
            ["3:1 unknown-key: unknown key 'slot' (did you mean 'slots'?)"],
        ),
        (
            "slots: 0\ngrid: {debug.seed: [1]}",
            ["3:8 out-of-range: must be above 0, but is 0 (None)"],
        ),
        (
            "grid: {debug.seed: 1}",
            [
                "3:20 wrong-type: 'debug.seed' needs a list of the values to try (write "
                "debug.seed: [1])"
            ],
        ),
        (
            "grid: {debug.seed: []}",
            [
                "3:20 wrong-type: 'debug.seed' needs a list of the values to try (write "
                "optimizer.lr: [1.0e-3, 2.0e-3])"
            ],
        ),
        (
            "grid: [1]",
            ["3:7 wrong-type: grid maps paths to values (write optimizer.lr: [1.0e-3, 2.0e-3])"],
        ),
        (
            "zip: {debug.seed: [1, 2], optimizer.lr: [1.0e-3]}",
            [
                "3:1 conflict: zip needs the same number of values for each path: 'debug.seed' "
                "has 2 and 'optimizer.lr' has 1 (None)"
            ],
        ),
        (
            "grid: {debug.seed: [1]}\nlist: [{debug.seed: 2}]",
            ["4:9 conflict: 'debug.seed' is already varied in grid (remove one of the two)"],
        ),
        (
            "early_stopping: {name: median, factor: 2}\ngrid: {debug.seed: [1]}",
            [
                "3:32 unknown-key: unknown key 'factor' in early stopping 'median' (remove it: a "
                "key of early stopping 'asha', 'halving' or 'hyperband')"
            ],
        ),
        (
            "early_stopping: {name: hyperbnd}\ngrid: {debug.seed: [1]}",
            ["3:24 unknown-name: unknown early stopping 'hyperbnd' (did you mean 'hyperband'?)"],
        ),
        (
            "early_stopping: {name: percentile, percentile: 101, fist_step: 3}\n"
            "grid: {debug.seed: [1]}",
            [
                "3:48 out-of-range: 101 is above 100 (None)",
                "3:53 unknown-key: unknown key 'fist_step' in early stopping 'percentile' (did you "
                "mean 'first_step'?)",
            ],
        ),
        (
            "early_stopping: {name: patient}\ngrid: {debug.seed: [1]}",
            [
                "3:1 missing-key: missing required key 'patience' in early stopping 'patient' (add "
                "early_stopping.patience)"
            ],
        ),
        (
            "early_stopping: {name: patient, patience: 2, rule: halving}\n"
            "search: {count: 12, values: {debug.seed: {integer: [1, 2]}}}",
            [
                "3:52 conflict: patient cannot wrap halving (use rule: hyperband, asha or "
                "percentile, or remove it)"
            ],
        ),
        *(
            (
                f"early_stopping: {{name: {name}}}\ngrid: {{debug.seed: [1]}}",
                [
                    f"3:24 conflict: {name.partition(',')[0]} is a rule of Optuna, which a sweep "
                    "without search does not use (use median or halving, or write the values in a "
                    "section search)"
                ],
            )
            for name in ("hyperband", "asha", "percentile", "patient, patience: 3")
        ),
        (
            "early_stopping: hyperband\nsearch: {count: 12, values: {training.steps: {choice: [20, "
            "30]}}}",
            [
                "3:17 conflict: hyperband needs the same training.steps in all runs, but they "
                "differ: 20 and 30 (use asha, or give all runs the same number of steps)"
            ],
        ),
        (
            "early_stopping: {name: patient, patience: 2, rule: hyperband}\noverrides: "
            "[training.steps=null, training.epochs=1]\n"
            "search: {count: 12, values: {debug.seed: {integer: [1, 2]}}}",
            [
                "3:17 conflict: hyperband needs training.steps, but the length of the runs is in "
                "epochs (use asha, or give all runs the same number of steps)"
            ],
        ),
        (
            "early_stopping: {name: asha, first_step: 81}\n"
            "search: {count: 12, values: {debug.seed: {integer: [1, 2]}}}",
            [
                "3:42 no-effect: early stopping begins at step 81, but the runs end at step 80 "
                "(lower first_step)"
            ],
        ),
        (
            "random: {count: 2, values: {debug.seed: {integr: [1, 2]}}}",
            ["3:42 unknown-name: unknown distribution 'integr' (did you mean 'integer'?)"],
        ),
        (
            "random: {count: 2, values: {optimizer.lr: {log_uniform: [0, 1]}}}",
            [
                "3:57 out-of-range: a distribution needs two numbers above zero, the lower one "
                "first (None)"
            ],
        ),
        (
            "random: {values: {debug.seed: {integer: [1, 2]}}}",
            ["3:1 missing-key: missing required key 'count' in random (add count)"],
        ),
        (
            "search: {count: 3, values: {optimizer.lr: {log_uniform: [1.0e-5, 1.0e-2]}}}\n"
            "grid: {debug.seed: [1]}",
            [
                "3:1 conflict: search draws all values, but grid lists values too (remove one of "
                "the two, or write the values of grid as choices)"
            ],
        ),
        (
            "search: {count: 3, sampler: tpee, values: {optimizer.lr: {uniform: [1, 0]}}}",
            [
                "3:29 unknown-name: unknown value 'tpee'; expected tpe, cmaes, gp, random or qmc "
                "(did you mean 'tpe'?)",
                "3:68 out-of-range: a distribution needs two numbers, the lower one first (None)",
            ],
        ),
        (
            "search: {values: {debug.seed: {integer: [1, 2]}}}",
            ["3:1 missing-key: missing required key 'count' in search (add count)"],
        ),
        (
            "search: {count: 3}",
            [
                "3:1 missing-key: missing required key 'values' in search (write values: "
                "{optimizer.lr: {log_uniform: [1.0e-5, 1.0e-2]}})"
            ],
        ),
        (
            "search: {count: 3, sampler: cmaes, values: {debug.seed: {choice: [1, 2]}}}",
            ["3:29 conflict: cmaes needs numbers, but 'debug.seed' is a choice (use sampler: tpe)"],
        ),
        (
            "search: {count: 3, sampler: qmc, startup: 2, values: {debug.seed: {integer: [1, 2]}}}",
            ["3:43 no-effect: qmc does not support startup (remove it)"],
        ),
        (
            "search: {count: 1, first: [{debug.seed: 7, optimizer.lr: 1}, {debug.seed: 1}], "
            "values: {debug.seed: {integer: [1, 2]}}}",
            [
                "3:41 out-of-range: 7 is outside the distribution of 'debug.seed' (use a value "
                "that may be drawn, or widen the distribution)",
                "3:44 unknown-key: 'optimizer.lr' is not in the values of the search (add its "
                "distribution to values, or set it in overrides)",
            ],
        ),
        (
            "search: {count: 1, first: [{debug.seed: 2}, {debug.seed: 1}], values: {debug.seed: "
            "{integer: [1, 2]}}}",
            [
                "3:17 conflict: first has 2 points, but count is 1 (raise count, or remove first "
                "points)"
            ],
        ),
        # of the space itself, before anything is drawn
        (
            "search: {count: 3, values: {optimizer.lr: {uniform: [-1.5, 1]}, debug.sed: {integer: "
            "[1, 2]}}}",
            [
                "3:43 out-of-range: -1.5 is not above 0 (None)",
                "3:65 unknown-key: unknown key 'sed' in section 'debug' (did you mean 'seed'?)",
            ],
        ),
        (
            "filters: [lr 3]\ngrid: {debug.seed: [1]}",
            [
                "3:11 usage: 'lr 3' is not a condition (write a path, one of <= >= == != < >, "
                "and a value or another path: optimizer.lr < 0.01)"
            ],
        ),
        (
            "filters: [optimizer.rate < 3]\ngrid: {debug.seed: [1]}",
            [
                "3:11 unknown-key: 'optimizer.rate' not found in the recipe (use the path of a "
                "recipe field)"
            ],
        ),
        (
            "grid: {debug.seed: [1, 2, 1]}",
            [
                "3:27 conflict: two points have the same recipe, the second one is skipped "
                "(remove one of the two values)"
            ],
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_in_the_file(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert said(written(tmp_path, text)) == expected


def test_the_overrides_of_a_sweep_need_not_be_repeated_to_see_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe is not valid without them."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("version: 1\nmodel: {name: llama3, flavor: debugmodel}\n")
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"version: 1\nrecipe: {recipe}\nfolder: {tmp_path / 'runs'}\n"
        "grid: {optimizer.lr: [1.0e-3, 2.0e-3]}\n"
    )
    monkeypatch.setattr(sweep_command, "train_sweep", lambda *_: 0)
    overrides = ["training.dataset=tiny", "training.steps=5"]
    assert sweep_command.run([str(file), *overrides]) == 0
    capsys.readouterr()
    assert sweep_command.run([str(file), "--table"]) == 0
    assert capsys.readouterr().out.count("waiting") == 2
    # a start without them forgets them
    sweep_command.run([str(file), "--table", *overrides])
    with pytest.raises(ProblemsFound):
        sweep_command.run([str(file)])


def test_a_sweep_that_tries_nothing_or_keeps_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="has no values to try"):
        read_sweep(written(tmp_path, "slots: 2"))
    with pytest.raises(ProblemsFound, match="no point of the sweep satisfies its filters"):
        runs(written(tmp_path, "filters: [debug.seed > 5]\ngrid: {debug.seed: [1, 2]}"))


@pytest.mark.parametrize(
    "file", sorted((RECIPE.parent / "sweeps").glob("*.yaml")), ids=lambda file: file.stem
)
def test_shipped_sweep_files_are_valid(file: Path) -> None:
    sweep = read_sweep(file)
    if sweep.search is None:
        assert validate_points(sweep, [], {})[1] == []
    else:
        assert validate_space(build_planner(sweep, [], {}))[1] == []


def validated(
    capsys: pytest.CaptureFixture[str], file: Path, *words: str
) -> tuple[int, list[tuple[str, int]]]:
    """The exit code of `titanrun validate`, and the message and line of each error."""
    code = validate.run([str(file), "--format", "json", *words])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    errors = [item for item in found if item["severity"] == "error"]
    return code, [(item["message"], item["line"]) for item in errors]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("grid: {optimizer.lr: [1.0e-3, fast]}", "expected a number"),
        (
            "search: {count: 3, values: {optimizer.lr: {choice: [1.0e-3, -1]}}}",
            "-1 is not above 0",
        ),
    ],
)
def test_validate_reports_the_mistakes_of_points_in_the_sweep_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: str, message: str
) -> None:
    code, found = validated(capsys, written(tmp_path, values))
    assert code == 2 and any(message in text and line == 3 for text, line in found), found
    # single keys of points are not looked at before the level rules
    assert validated(capsys, written(tmp_path, values), "--level", "schema") == (0, [])


def test_validate_looks_for_the_data_of_points_at_the_level_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(
        tmp_path, "overrides: [validation.enable=false]\ngrid: {training.dataset.path: [none.txt]}"
    )
    assert validated(capsys, file, "training.dataset.name=text") == (0, [])
    code, found = validated(capsys, file, "training.dataset.name=text", "--level", "environment")
    assert code == 3 and found[0][1] == 4, found


def test_a_recipe_in_the_place_of_a_sweep_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("version: 1\nmodel: llama3\ntraining: {dataset: tiny}\n")
    with pytest.raises(ProblemsFound) as found:
        read_sweep(file)
    (problem,) = found.value.problems
    assert (problem.message, problem.origin and problem.origin.line) == (
        "this is a recipe, not a sweep",
        2,
    )
    assert str(problem.hint).startswith(f"titanrun train {file}; ")
