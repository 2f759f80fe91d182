"""Reading of a recipe with lists that it adds to."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.recipe_file import find_recipe_file
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.validation_levels import validate_file

BASE = "extends: shipped:llama3_debug.yaml\n"


def write(folder: Path, text: str, name: str = "main.yaml") -> str:
    """The path of a new file."""
    (folder / name).write_text(text)
    return str(folder / name)


def list_converters(file: str, *overrides: str) -> list[str]:
    """The names of a run's converters."""
    run = resolve_recipe(file, overrides, environment={}).recipe
    return [converter.name for converter in run.converters]


def test_a_recipe_adds_converters_to_those_of_its_base(tmp_path: Path) -> None:
    """Row C11 of the defect list."""
    write(tmp_path, f"{BASE}converters: [float8_linear]\n", "base.yaml")
    file = write(tmp_path, "extends: base.yaml\nconverters+: [lora]\n")
    assert list_converters(file) == ["float8_linear", "lora"]
    qat = list_converters(file, "converters-=0", "converters+=fp32_lm_head", "converters-=lora")
    assert qat == ["fp32_lm_head"]


def test_an_addition_without_a_list_adds_to_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, f"{BASE}converters+: lora\nmetrics: {{trackers+: [csv]}}\n")
    assert list_converters(file) == ["lora"]
    run = resolve_recipe(file, environment={}).recipe
    assert [tracker.name for tracker in run.metrics.trackers] == ["csv"]


def test_a_stage_adds_to_the_list_of_its_recipe(tmp_path: Path) -> None:
    stages = "stages:\n- {id: one}\n- {id: two, converters+: [lora]}\n"
    write(tmp_path, f"{BASE}converters: [float8_linear]\n{stages}", "base.yaml")
    file = write(tmp_path, "extends: base.yaml\nstages+: [{id: three, converters+: [lora]}]\n")
    assert list_converters(f"{file}#one") == ["float8_linear"]
    assert list_converters(f"{file}#two") == ["float8_linear", "lora"]
    assert list_converters(f"{file}#three") == ["float8_linear", "lora"]


def test_stages_can_be_added_where_there_are_none(tmp_path: Path) -> None:
    file = write(tmp_path, f"{BASE}stages+: [{{id: one, converters+: [lora]}}]\n")
    assert list_converters(f"{file}#one") == ["lora"]


def test_toml_adds_under_a_quoted_key(tmp_path: Path) -> None:
    text = 'extends = "shipped:llama3_debug.yaml"\n"converters+" = ["lora"]\n'
    assert list_converters(write(tmp_path, text, "main.toml")) == ["lora"]


def test_a_misspelt_addition_is_told_the_list(tmp_path: Path) -> None:
    file = write(tmp_path, f"{BASE}convertres+: [lora]\ntraining: {{stesp+: 1}}\n")
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(file, environment={})
    told = {problem.path: (problem.code, problem.hint) for problem in found.value.problems}
    assert told == {
        ("convertres+",): ("unknown-key", "did you mean 'converters+'?"),
        ("training", "stesp+"): ("unknown-key", "this key is not a list that can be extended"),
    }


def test_a_name_is_that_of_a_shipped_recipe_unless_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find_recipe_file("llama3_tiny_learn")
    assert Path(shipped).is_file()
    assert find_recipe_file("llama3_tiny_learn#first") == f"{shipped}#first"
    # the one that is meant is named with its suffix
    (tmp_path / "llama3_tiny_learn.toml").touch()
    assert find_recipe_file("llama3_tiny_learn") == "llama3_tiny_learn"
    (tmp_path / "llama3_tiny_learn").touch()
    assert find_recipe_file("llama3_tiny_learn") == "llama3_tiny_learn"
    with pytest.raises(ProblemsFound) as found:
        find_recipe_file("llama3_debugg")
    assert found.value.problems[0].hint == "did you mean 'llama3_debug'?"
    # the name of a file is told as such where it is read
    assert find_recipe_file("llama3_debugg.yaml") == "llama3_debugg.yaml"


def test_the_level_syntax_finds_shipped_files(tmp_path: Path) -> None:
    """It knew no `shipped:`, a case like row C11: composing had two callers with other folders."""
    result = validate_file(write(tmp_path, BASE), (), level="syntax", environment={})
    assert result.problems == ()


def test_a_reference_to_the_name_of_a_nameless_recipe_is_the_name_of_its_run(
    tmp_path: Path,
) -> None:
    text = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    file = write(tmp_path, f"{text}description: ${{name}}, again ${{name}}\n", "mine.yaml")
    run = resolve_recipe(file, environment={}).run
    assert (run.name, run.description) == ("mine", "mine, again mine")


def test_a_folder_of_a_run_is_told_its_recipe(tmp_path: Path) -> None:
    write(tmp_path, "version: 1\n", "resolved.yaml")
    with pytest.raises(ProblemsFound) as found:
        find_recipe_file(str(tmp_path))
    (problem,) = found.value.problems
    assert problem.message == f"{tmp_path} is a folder of a run, not a recipe"
    assert f"{tmp_path / 'resolved.yaml'};" in str(problem.hint)
    assert f"titanrun resume {tmp_path}" in str(problem.hint)
    # another folder is left to the reader
    (tmp_path / "other").mkdir()
    assert find_recipe_file(str(tmp_path / "other")) == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "override", "hint"),
    [
        ("name: 010\n", (), 'write "010"'),
        ("name: 08\n", (), 'write "08"'),
        ("", ("name=010",), "write 'name=\"010\"'"),
        ("debug: {seed: 08}\n", (), "write 8"),
    ],
)
def test_a_text_of_digits_with_a_zero_in_front_keeps_it(
    text: str, override: tuple[str, ...], hint: str, tmp_path: Path
) -> None:
    file = write(tmp_path, f"{BASE}{text}")
    (problem,) = validate_file(file, override, level="rules", environment={}).problems
    assert (problem.code, problem.hint) == ("ambiguous-number", hint)
    assert problem.fix is None or f"write {problem.fix.replacement}" == hint
