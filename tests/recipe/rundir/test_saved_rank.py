"""Adapters of another rank, or at other modules, than those that a run has saved."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64, steps: 20}
converters: [{name: lora, rank: 8}]
dump_folder: tuned
"""


@pytest.fixture(autouse=True)
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has saved adapters of rank 8."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(RECIPE)
    folder = tmp_path / "tuned"
    (folder / "checkpoint" / "step-5").mkdir(parents=True)
    (folder / "checkpoint" / "step-5" / "manifest.json").write_text("{}")
    (folder / "resolved.yaml").write_text(resolved().text)
    return folder


def resolved(*overrides: str) -> Resolved:
    return resolve_recipe("r.yaml", overrides, environment={})


@pytest.mark.parametrize("allowed", [[], ["checkpoint.allow_change=[converters]"]])
def test_the_rank_of_saved_adapters_stays_and_the_way_to_another_is_told(
    allowed: list[str],
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        select_run_directory(resolved("converters[0].rank=4", *allowed), NOW)
    (problem,) = caught.value.problems
    assert problem.label == "conflict/rank-stays"
    assert str(problem.origin) == "<override 1>"
    assert problem.message == (
        "rank is 4, but 'tuned' has adapters of rank 8, and the rank of saved adapters cannot "
        "change"
    )
    assert problem.hint == (
        "write rank: 8, or merge them: titanrun checkpoint export tuned tuned-merged --format hf "
        "--merge, then titanrun train tuned/resolved.yaml model.hf_assets_path=tuned-merged "
        "checkpoint.initial_load_path=null checkpoint.initial_load_in_hf=true "
        "'converters[0].rank=4' dump_folder=tuned-rank-4"
    )


def test_the_same_rank_goes_on_and_before_a_checkpoint_any_does(tuned: Path) -> None:
    assert select_run_directory(resolved("converters[0].rank=8"), NOW).state == "unfinished"
    (tuned / "checkpoint" / "step-5" / "manifest.json").unlink()
    assert select_run_directory(resolved("converters[0].rank=4"), NOW).state == "new"


@pytest.mark.parametrize("allowed", [[], ["checkpoint.allow_change=[converters]"]])
def test_the_modules_of_saved_adapters_stay_too(allowed: list[str]) -> None:
    other = "converters[0].target_modules=[wq, wo]"
    with pytest.raises(ProblemsFound) as caught:
        select_run_directory(resolved(other, *allowed), NOW)
    (problem,) = caught.value.problems
    assert problem.label == "conflict/adapted-modules-stay"
    assert problem.message == (
        "target_modules lacks layers.*.attention.wk, layers.*.attention.wv, "
        "layers.*.feed_forward.w1 and 2 more, but the modules of the adapters in 'tuned' cannot "
        "change"
    )
    assert problem.hint is not None
    assert problem.hint.startswith("write target_modules: [all-linear], or merge them: titanrun ")
    assert problem.hint.endswith(f"'{other}' dump_folder=tuned-other-modules")


def test_other_words_for_the_same_modules_go_on() -> None:
    same = "converters[0].target_modules=['layers.*.attention.*', w1, w2, w3]"
    allowed = "checkpoint.allow_change=[converters]"
    assert select_run_directory(resolved(same, allowed), NOW).state == "unfinished"
