"""What each level of validate looks at, and what it leaves to the next one."""

from pathlib import Path

import pytest

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.validation_levels import (
    VALIDATION_LEVELS,
    ValidationLevel,
    ValidationResult,
    add_build_problems,
    check_tensor_parallel_split,
    validate_file,
)

SOUND = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\ntraining: {dataset: "
    "tiny, steps: 4}\n"
)
MISTAKES = {
    "syntax": ("training:", "training: ["),
    "schema": ("steps: 4", "stepz: 4"),
    "rules": ("tokenizer: tiny", "lr_scheduler: {warmup_steps: 99}"),
    "environment": ("dataset: tiny", "dataset: {name: tokens, path: nowhere.npy}"),
}


def examine(level: ValidationLevel, *overrides: str) -> ValidationResult:
    return validate_file("recipe.yaml", overrides, level=level, environment={})


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows_from_its_level_on(
    mistake: ValidationLevel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(SOUND.replace(*MISTAKES[mistake]), encoding="utf-8")
    shown = [level for level in VALIDATION_LEVELS if examine(level).exit_code]
    assert shown == list(VALIDATION_LEVELS[VALIDATION_LEVELS.index(mistake) :])


def test_syntax_covers_included_files_and_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("extends: base.yaml\nnobody: knows this\n", encoding="utf-8")
    Path("base.yaml").write_text("training: {steps: [}\n", encoding="utf-8")
    (problem,) = examine("syntax").problems
    assert problem.origin is not None
    assert str(problem.origin).startswith("base.yaml:1:")
    Path("base.yaml").write_text("version: 1\n", encoding="utf-8")
    assert examine("syntax").exit_code == 0
    assert examine("syntax", "training.steps=[").exit_code == 2


def test_nothing_is_built_while_there_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(SOUND.replace("steps: 4", "stepz: 4"), encoding="utf-8")
    asked: list[Resolved] = []

    def try_build(resolved: Resolved) -> list[Problem]:
        asked.append(resolved)
        return [Problem("conflict", "too small", ("training", "steps"))]

    assert add_build_problems(examine("build"), try_build).problems[0].code == "unknown-key"
    assert asked == []
    Path("recipe.yaml").write_text(SOUND, encoding="utf-8")
    found = add_build_problems(examine("build"), try_build)
    assert [str(problem.origin) for problem in found.problems] == ["recipe.yaml:4:34"]
    assert found.exit_code == 2


def test_a_folder_that_cannot_be_is_reported_together_with_other_mistakes(tmp_path: Path) -> None:
    """It came only after all others had been repaired."""
    (tmp_path / "file").touch()
    recipe = tmp_path / "recipe.yaml"
    for mistake in ("training: {datset: tiny}", "training: {dataset: tiny, seq_len: -1}"):
        recipe.write_text(
            f"version: 1\nmodel: {{name: llama3, flavor: debugmodel}}\n{mistake}\n"
            f"dump_folder: {tmp_path / 'file' / 'run'}\n"
        )
        with pytest.raises(ProblemsFound) as found:
            resolve_recipe(str(recipe), environment={}, should_check_inputs=True)
        about = [problem.path for problem in found.value.problems]
        assert len(about) > 1 and about.count(("dump_folder",)) == 1


RECIPES = Path(__file__).parents[3] / "recipes"
NEWCOMERS = ("chat_base_to_chat", "chat_qwen3_0.6b", "tool_calls_qwen3", "distill_qwen3_8b_to_0.6b")


@pytest.mark.parametrize("name", NEWCOMERS)
def test_a_shipped_recipe_takes_a_model_of_the_hub_that_is_not_here(
    name: str, tmp_path: Path
) -> None:
    nowhere = {"HOME": str(tmp_path)}
    hub = ["model.hf_assets_path=hub:Qwen/Qwen3-0.6B"]
    found = validate_file(f"{RECIPES}/{name}.yaml", hub, level="rules", environment=nowhere)
    assert [problem.message for problem in found.problems] == [
        "hub:Qwen/Qwen3-0.6B has not been downloaded"
    ]
    assert found.exit_code == 0
    mistaken = [*hub, "tokenizer.chat_tmplate=chatml"]
    found = validate_file(f"{RECIPES}/{name}.yaml", mistaken, level="rules", environment=nowhere)
    assert "unknown key 'chat_tmplate' in tokenizer 'huggingface'" in [
        problem.message for problem in found.problems
    ]


@pytest.mark.parametrize(
    ("folder", "repository"),
    [
        ("assets/hf/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("assets/hf/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("models/mine", "OWNER/NAME"),
    ],
)
def test_a_missing_model_names_both_ways_to_get_it(
    folder: str, repository: str, tmp_path: Path
) -> None:
    found = validate_file(
        f"{RECIPES}/chat_qwen3_0.6b.yaml",
        [f"model.hf_assets_path={folder}"],
        level="environment",
        environment={"HOME": str(tmp_path)},
    )
    (missing,) = [one for one in found.problems if one.message.startswith("folder not found")]
    assert missing.hint == (
        f"titanrun download {repository} -o {folder} fetches it; or write hub:{repository} instead "
        "of the folder, and titanrun train fetches it"
    )


@pytest.mark.parametrize(
    ("name", "told"), [("llama3_debug", None), ("flux_debug", "model 'flux' cannot be split")]
)
def test_only_a_model_that_can_be_split_goes_over_processes(name: str, told: str | None) -> None:
    recipe = resolve_recipe(str(RECIPES / f"{name}.yaml"), environment={}).run
    if told is None:
        check_tensor_parallel_split(recipe, 2)
        told = "--nproc 7: "
    with pytest.raises(ProblemsFound, match=told) as found:
        check_tensor_parallel_split(recipe, 7)
    hint = "omit --nproc" if name == "flux_debug" else "use an --nproc of 1, 2 or 4"
    assert found.value.problems[0].hint == hint
