"""Recipes that are no files: standard input, process substitution, names of shipped ones."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.cli.arguments import split_overrides
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.shipped_recipes import get_shipped_folder
from titanrun.recipe.resolving.resolve import resolve_recipe

Run = Callable[..., subprocess.CompletedProcess[str]]
RECIPE = "extends: shipped:llama3_debug.yaml\ntraining:\n  seq_len: 32\n"


def test_a_dash_reads_standard_input(titanrun: Run) -> None:
    """Row C12 of the defect list."""
    done = titanrun("show", "-", "training.seq_len", input=RECIPE)
    assert (done.stdout, done.returncode) == ("32\n", 0)


def test_standard_input_has_the_name_and_the_folder_that_it_is_given(
    titanrun: Run, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.toml").write_text('extends = "shipped:llama3_debug.yaml"\n')
    words = ("validate", "-", "--stdin-name", "sub/mine.toml")
    assert titanrun(*words, input='extends = "base.toml"\n').stderr == "sub/mine.toml: ok\n"
    wrong = titanrun(*words, input='extends = "base.toml"\n[training]\nstesp = 1\n')
    assert "unknown key 'stesp'" in wrong.stderr
    assert " --> sub/mine.toml:3:1" in wrong.stderr
    assert not (tmp_path / "sub" / "mine.toml").exists()


def test_each_stage_of_standard_input_is_read(titanrun: Run) -> None:
    stages = "stages: [{id: one}, {id: two, training: {seq_len: 16}}]\n"
    assert titanrun("validate", "-", input=RECIPE + stages).stderr == "stdin: ok\n"
    done = titanrun("show", "stdin#two", "training.seq_len", input=RECIPE + stages)
    assert done.stdout == "16\n"


def test_two_recipes_of_which_one_is_standard_input_are_compared(
    titanrun: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(RECIPE)
    other = RECIPE.replace("32", "64")
    done = titanrun("diff-config", "a.yaml", "-", input=other)
    assert done.returncode == 1
    assert "32 (a.yaml:3) -> 64 (stdin:3)" in done.stdout
    assert titanrun("diff-config", "-", "-", input=RECIPE).returncode == 0


def test_what_a_shell_substitutes_is_read_with_its_bases_from_here(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(RECIPE)
    titanrun = Path(sys.executable).parent / "titanrun"
    command = f"{titanrun} diff-config <(printf 'extends: base.yaml\\n') base.yaml"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_toml_without_a_suffix_is_told_by_its_first_key(titanrun: Run) -> None:
    text = '# a comment\n\nextends = "shipped:llama3_debug.yaml"\n[training]\nseq_len = 16\n'
    assert titanrun("show", "-", "training.seq_len", input=text).stdout == "16\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("validate", "-", "--fix"), "--fix writes files, but stdin is not a file"),
        (("validate", "a.yaml", "--stdin-name", "b.yaml"), "without a recipe from standard input"),
        (("show", "-"), "contains nothing but comments"),
    ],
)
def test_what_standard_input_cannot_do_is_said(titanrun: Run, words: str, message: str) -> None:
    done = titanrun(*words, input="")
    assert message in done.stderr
    assert done.returncode == 2


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(titanrun: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "pipe.yaml is not a regular file" in titanrun("validate", "pipe.yaml", timeout=60).stderr


def test_a_shipped_recipe_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row C13 of the defect list."""
    monkeypatch.chdir(tmp_path)
    found = resolve_recipe("llama3_debug", ["training.steps=9"], environment={})
    assert (
        found.run
        == resolve_recipe(
            str(get_shipped_folder() / "llama3_debug.yaml"), ["training.steps=9"], environment={}
        ).run
    )
    assert found.tree.origin.source.name.endswith("llama3_debug.yaml")
    assert resolve_recipe("forge/sft_debug", environment={}).run.kind == "sft"
    assert resolve_recipe("qwen3_0.6b", environment={}).run.model.name == "qwen3"


def test_a_file_comes_before_a_shipped_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama3_debug.yaml").write_text(RECIPE)
    assert resolve_recipe("llama3_debug.yaml", environment={}).run.training.seq_len == 32
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe("llama3_debug", environment={})
    (problem,) = found.value.problems
    assert problem.hint == "did you mean 'llama3_debug.yaml'?"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("llama3_debg", "did you mean 'llama3_debug'?"),
        ("forge/sft_debgu", "did you mean 'forge/sft_debug'?"),
        (
            "llama3_8b.yaml",
            "titanrun ships it: write llama3_8b, "
            "or titanrun cp llama3_8b llama3_8b.yaml for a copy",
        ),
    ],
)
def test_what_resembles_a_shipped_recipe_is_told_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(word, environment={})
    assert [problem.hint for problem in found.value.problems] == [hint]


def test_a_recipe_after_a_flag_of_torchtitan_is_not_its_value() -> None:
    words = [
        "--compile.enable",
        "mine.yaml",
        "--training.steps",
        "5",
        "--model.vocab",
        "other.toml",
    ]
    assert split_overrides(words) == (
        ["--compile.enable", "--training.steps", "5", "--model.vocab", "other.toml"],
        ["mine.yaml"],
    )
