"""Help with a resumed run: changes, and another folder, where its relative paths lead nowhere."""

import json
from pathlib import Path

import pytest

from titanrun.cli import resume
from titanrun.cli.resume_hints import add_resume_hints
from titanrun.config.problems import Origin, Problem, ProblemsFound, RelatedLocation, SourceText
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: {name: text, path: FILE}
  seq_len: 32
"""


def find_hint(folder: Path, file: str, started_in: str | None) -> str:
    (folder / "r.yaml").write_text(RECIPE.replace("FILE", file), encoding="utf-8")
    run = folder / "run"
    run.mkdir()
    text = resolve_recipe(str(folder / "r.yaml"), environment={}).text
    (run / "resolved.yaml").write_text(text, encoding="utf-8")
    if started_in is not None:
        (run / "run.json").write_text(json.dumps({"starts": [{"cwd": started_in}]}))
    with pytest.raises(ProblemsFound) as caught:
        resume.run([str(run)])
    (problem,) = caught.value.problems
    assert (problem.rule, problem.path) == ("paths-exist", ("training", "dataset", "path"))
    return str(problem.hint)


@pytest.mark.parametrize(
    ("started_in", "place"),
    [
        ("/far/away", "resume in /far/away, where the run was started"),
        (None, "resume in the folder in which the run was started"),
    ],
)
def test_a_missing_relative_path_names_the_folder_of_the_run(
    started_in: str | None, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = find_hint(tmp_path, "data/*.jsonl", started_in)
    option = "if it was moved or renamed, add --moved 'data/*.jsonl'=NEW"
    assert hint == f"{option}; or {place}; paths are relative to {tmp_path}"


def test_an_absolute_path_is_missing_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = find_hint(tmp_path, f"{tmp_path}/none.jsonl", "/far/away")
    assert hint.startswith(f"if it was moved or renamed, add --moved {tmp_path}/none.jsonl=NEW")
    assert "started" not in hint


def test_a_change_that_a_resume_refuses_is_shown_where_it_was_typed() -> None:
    folder, typed = (
        Origin(SourceText("<override 2>", text, kind="override"), 1, 1, 10)
        for text in ("dump_folder=runs/first", "model.dim=64")
    )
    related = (RelatedLocation(typed, "model.dim 256 -> 64", ("model", "dim")),)
    refused = Problem(
        "conflict", "differs", ("dump_folder",), folder, rule="another-run", related=related
    )
    (problem,) = add_resume_hints(ProblemsFound([refused]), "runs/first/resolved.yaml").problems
    # the folder is an override that nobody wrote
    assert (problem.origin, problem.path, problem.related) == (None, (), related)
    assert "titanrun fork" in str(problem.hint)
