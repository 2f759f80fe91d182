"""What `titanrun data` finds out, and how it is shown."""

import io
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from titanrun.cli import data as command
from titanrun.cli.arguments import CommandParser
from titanrun.cli.data_output import (
    compute_histogram_bins,
    format_loss_chunk,
    iter_build_lines,
    iter_histogram_lines,
    iter_sample_lines,
    iter_summary_lines,
    plot_length_histogram,
)
from titanrun.cli.data_recipe import parse_recipe_options
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS, main

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training:
  dataset: {name: text, path: train.jsonl, packing: best_fit, too_long: drop}
  seq_len: 32
validation: {enable: true, dataset: {name: text, path: held.jsonl, packing: best_fit,
             shuffle: false}}
"""
TEXTS = [f"story {number} {'and so on ' * (number % 5)}" for number in range(20)]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Asks the worker about a recipe, or a folder, in this process."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.jsonl", [*TEXTS, TEXTS[0], "long " * 60])
    write(tmp_path / "held.jsonl", ["new", TEXTS[3]])
    (tmp_path / "r.yaml").write_text(RECIPE)

    def ask(action: str, *overrides: str, **request: Any) -> Any:
        text = resolve_recipe("r.yaml", overrides, environment={}).text
        return ACTIONS[action](
            {
                "resolved": text,
                "count": 2,
                "row": None,
                "section": None,
                "repair": False,
                "workers": None,
                "part": None,
                "finish": False,
                **request,
            }
        )

    return ask


def write(file: Path, texts: list[str]) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    os.utime(file, (time.time() - 100, time.time() - 100))


def test_build_of_data_that_ships_with_titanrun_names_no_folder(asked: Callable[..., Any]) -> None:
    found = asked("build", "training.dataset=tiny", "validation.dataset=tiny")
    assert [entry["folder"] for entry in found] == [None, None]
    assert not Path("runs/.data").exists()
    (line, _) = iter_build_lines(found)
    assert line.startswith("training.dataset: ") and line.endswith("s, nothing to tokenize\n")


def test_build_fills_the_folder_that_runs_share(asked: Callable[..., Any]) -> None:
    training, validation = asked("build")
    assert training["rows"] > validation["rows"] == 1 and training["folder"] == "runs/.data"
    assert len(list(Path("runs/.data").glob("*.npy"))) == 2
    asked("build", "training.data_cache=elsewhere")
    assert len(list(Path("elsewhere").glob("*.npy"))) == 2


def test_show_tells_what_counts_what_is_left_out_and_what_is_there_twice(
    asked: Callable[..., Any],
) -> None:
    training, validation = asked("show")
    assert (training["documents"], training["left_out"], training["cut"]) == (21, 1, 0)
    assert training["duplicates"] == 1 and training["in_training"] is None
    assert validation["documents"] == 2 and validation["in_training"] == 1
    assert 0 < validation["counted"] < validation["filled"] < 1 == validation["rows"]
    (sample,) = validation["samples"]
    kinds = [kind for kind, _ in sample["pieces"]]
    assert kinds == ["context", "counted", "end"] * 2 + ["filled"]
    text = "".join(iter_sample_lines([validation], use_color=False))
    assert (
        text.startswith("⟦in the loss⟧, not in the loss\n")
        and f"<|begin_of_text|>⟦{TEXTS[3]}<|end_of_text|>⟧\n" in text
        and "1 also in the training data" in text
    )
    assert (
        format_loss_chunk("yes", "counted", use_color=True)
        != format_loss_chunk("yes", "context", use_color=True)
        != "yes"
    )
    assert asked("show", row=0, section="validation")[1]["samples"][0]["row"] == 0


def test_of_a_stream_it_is_said_how_much_was_looked_at(asked: Callable[..., Any]) -> None:
    small = ("training.local_batch_size=1", "training.lanes=1")
    training, validation = asked("stats", "training.dataset.streaming=true", *small)
    # one pass, and no further one, which would find every document again
    assert (training["documents"], training["duplicates"]) == (21, 1)
    first = f"the first {training['looked_at']} sequences"
    lines = [line.strip() for line in "".join(iter_summary_lines(training)).splitlines()]
    assert lines[-1] == f"{training['duplicates']} duplicates in {first}"
    assert not any(line.startswith("longer than a sequence") for line in lines)
    assert (training["left_out"], training["cut"]) == (None, None)
    assert lines[-2] == "left out by filters, as too long, or in bad records and files: not counted"
    lines = [line.strip() for line in "".join(iter_summary_lines(validation)).splitlines()]
    assert lines[-1] == f"0 duplicates, 1 also in {first} of the training data"
    assert lines[-2] == "longer than a sequence: 0 dropped, 0 truncated"


def test_a_batch_that_reads_a_stream_twice_counts_no_duplicates(asked: Callable[..., Any]) -> None:
    large = ("training.local_batch_size=64", "training.lanes=1")
    training, _ = asked("show", "training.dataset.streaming=true", *large)
    assert training["duplicates"] is None and len(training["samples"]) == 2
    *_, line = iter_summary_lines(training)
    assert line.strip() == "duplicates not counted: a global batch reads the data more than once"


def test_what_a_mixture_reads_again_is_no_duplicate(asked: Callable[..., Any]) -> None:
    write(Path("train.jsonl"), TEXTS * 4)
    write(Path("few.jsonl"), [f"few {number} {'more ' * 10}" for number in range(5)])
    sources = ", ".join(
        f"{{dataset: {{name: text, path: {name}.jsonl, packing: best_fit}}}}"
        for name in ("few", "train")
    )
    mixture = f"training.dataset={{name: mixture, sources: [{sources}]}}"
    training, *_ = asked("stats", mixture)
    assert (training["documents"], training["duplicates"]) == (85, 60)


def test_windows_are_looked_at_as_documents_too(asked: Callable[..., Any]) -> None:
    training, _ = asked(
        "stats",
        "training.dataset.packing=windows",
        "training.dataset.too_long!",
        "model.attention.documents=eos",
        "validation.dataset.packing=windows",
        "validation.seq_len=8",
    )
    assert training["filled"] == training["counted"] == 1.0
    # the last document may be cut off with the last row
    assert training["documents"] in (21, 22) and training["duplicates"] == 1


@pytest.mark.parametrize("packing", ["best_fit", "null", "documents"])
def test_equal_pieces_of_one_document_are_no_duplicates(
    packing: str, asked: Callable[..., Any]
) -> None:
    """They were counted as documents, and as duplicates of each other."""
    # 4 texts in many pieces, of which two are equal
    write(Path("train.jsonl"), ["ab" * 400, "ab" * 400, "cd" * 30, "abc" * 400])
    options = [f"training.dataset.packing={packing}", "training.seq_len=7"]
    if packing == "documents":
        options.append("training.dataset.too_long!")
    else:
        options.append("training.dataset.too_long=split")
    training, _ = asked("stats", *options)
    assert (training["documents"], training["duplicates"]) == (4, 1)
    assert training["longest"] > 100


def test_data_that_no_epoch_of_which_fills_a_step_is_shown(
    asked: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    roles = [{"role": role, "content": "yes"} for role in ("user", "assistant")]
    Path("chats.jsonl").write_text("".join(json.dumps({"messages": roles}) + "\n" for _ in "ab"))
    options = ["training.dataset={name: chat, path: chats.jsonl}", "training.epochs=1"]
    parser = CommandParser("data show", "", "")
    _, resolved = parse_recipe_options(parser, ["r.yaml", *options])
    assert resolved.run.training.epochs == 1
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe("r.yaml", options, environment={}, should_check_inputs=True)
    assert [problem.rule for problem in found.value.problems] == ["epochs-fill-a-step"]


def test_lengths_become_bars_and_a_picture(asked: Callable[..., Any]) -> None:
    found = asked("stats")
    assert sum(count for _, _, count in compute_histogram_bins(found[0]["lengths"])) == 21
    assert compute_histogram_bins([3, 4, 40]) == [
        (0, 4, 2),
        *((first, first + 4, 0) for first in range(5, 40, 5)),
        (40, 44, 1),
    ]
    assert [line.split()[-1] for line in iter_histogram_lines([1, 1, 2])] == [
        "2",
        "1",
    ] and not list(iter_histogram_lines([]))
    assert plot_length_histogram(found).count("<polyline") == 2


def test_damage_and_changes_are_found_and_cleared(asked: Callable[..., Any]) -> None:
    asked("build")
    folder = "runs/.data"
    assert [
        entry["damage"] or entry["changed"] for entry in ACTIONS["verify"]({"folder": folder})
    ] == [[], []]
    tokens = sorted(Path(folder).glob("*.npy"))[0]
    data = bytearray(tokens.read_bytes())
    data[-1] ^= 1
    tokens.write_bytes(data)
    found = {entry["name"]: entry for entry in ACTIONS["verify"]({"folder": folder})}
    assert (
        "other ones" in found[tokens.stem]["damage"]
        and sum(entry["damage"] is not None for entry in found.values()) == 1
    )
    write(Path("held.jsonl"), ["newer"])
    assert ["held.jsonl"] in [entry["changed"] for entry in ACTIONS["verify"]({"folder": folder})]
    plain: dict[str, Any] = {"folder": folder, "all": False, "days": None, "yes": False}
    named = {entry["name"] for entry in ACTIONS["prune"](plain)}
    assert tokens.stem in named and len(list(Path(folder).glob("*.npy"))) == 2
    ACTIONS["prune"](plain | {"yes": True})
    assert not named & {entry["name"] for entry in ACTIONS["verify"]({"folder": folder})}
    assert ACTIONS["prune"](plain | {"days": 1.0, "yes": True}) == []
    ACTIONS["prune"](plain | {"all": True, "yes": True})
    assert not list(Path(folder).glob("*.npy"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["shwo"], "did you mean 'show'"),
        (["verify", "nowhere"], "data_cache"),
        (["verify"], "data_cache"),
        (["verify", ""], "data_cache"),
        (["verify", "train.jsonl"], "data_cache"),
        (["verify", "r.yaml"], "titanrun data build r.yaml tokenizes it"),
        (["verify", "own.yaml"], "pass the folder data of the run directory"),
        (["prune"], "data_cache"),
        (["prune", ".", "--days", "nan"], "use 0 or more"),
        (["prune", ".", "--days", "-1"], "use 0 or more"),
        (["build", "r.yaml", "dump_folder=runs/x"], "add training.data_cache=runs/.data"),
        (["stats", "r.yaml", "-o", "a.png"], "ends in .svg"),
        (["show", "r.yaml", "-n", "-1"], "use 0 or more"),
    ],
)
def test_mistakes_in_the_command_line_are_told(
    arguments: list[str], told: str, asked: Callable[..., Any]
) -> None:
    text = Path("r.yaml").read_text(encoding="utf-8")
    Path("own.yaml").write_text(text + "dump_folder: runs/own\n")
    with pytest.raises(ProblemsFound) as caught:
        command.run(arguments)
    assert told in str(caught.value.problems[0].hint)


def test_verify_reads_the_cache_that_a_recipe_names(
    asked: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked("build", "training.data_cache=kept")
    text = Path("r.yaml").read_text(encoding="utf-8")
    Path("cached.yaml").write_text(text.replace("training:\n", "training:\n  data_cache: kept\n"))
    assert command.run(["verify", "kept"]) == 0
    expected = capsys.readouterr().out
    assert command.run(["verify", "cached.yaml"]) == 0
    assert capsys.readouterr().out == expected != ""


@pytest.mark.parametrize("folder", ["train.jsonl", "train.jsonl/below", "/proc/none"])
def test_a_cache_that_is_no_folder_is_a_problem_at_its_setting(
    folder: str, asked: Callable[..., Any]
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        asked("build", f"training.data_cache={folder}")
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("data", ("training", "data_cache"))
    assert problem.message.startswith(f"'{folder}' cannot hold tokenized data: ")


def test_a_file_that_cannot_be_written_is_a_problem(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder has the name of the tokens."""
    asked("build")
    tokens = sorted(Path("runs/.data").glob("*.npy"))[0]
    tokens.unlink()
    tokens.mkdir()
    text = resolve_recipe("r.yaml", [], environment={}).text
    request = {"action": "build", "quiet": True, "resolved": text, "repair": False}
    request |= {"workers": None, "part": None, "finish": False}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    capsys.readouterr()
    assert main() == 0
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] == "file"
    assert problem["message"].endswith(": is a directory")


def test_what_is_damaged_is_named_and_repaired_with_the_same_digest(
    asked: Callable[..., Any],
) -> None:
    def verify() -> dict[str, str | None]:
        found = ACTIONS["verify"]({"folder": folder})
        return {entry["source"]: entry["damage"] for entry in found}

    def flip_a_bit(name: str) -> None:
        written = bytearray((Path(folder) / name).read_bytes())
        written[-5] ^= 4
        (Path(folder) / name).write_bytes(written)

    folder = asked("build")[0]["folder"]
    write(Path("other.jsonl"), TEXTS)
    other = "training.dataset.path=other.jsonl"
    asked("build", other)
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    for name in before:
        if name.endswith(".npy"):
            flip_a_bit(name)
    wrong = "its tokens are other ones than when it was written, from token 0 on (block 0)"
    assert verify() == dict.fromkeys(("train.jsonl", "held.jsonl", "other.jsonl"), wrong)
    found = asked("build", repair=True)
    assert {entry["repaired"]["source"] for entry in found[2:]} == {"train.jsonl", "held.jsonl"}
    # that of another recipe goes on to be named
    assert verify() == {"train.jsonl": None, "held.jsonl": None, "other.jsonl": wrong}
    assert len(asked("build", other, repair=True)) == 3
    after = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    assert {name: after[name] for name in before} == before
    assert len(asked("build", repair=True)) == 2


@pytest.mark.slow
def test_the_commands_answer_through_the_installed_script(
    asked: Callable[..., Any], titanrun: Callable[..., Any]
) -> None:
    def said(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = titanrun("data", *words)
        assert done.returncode == code, done.stderr
        return done

    assert "tokenized in runs/.data" in said("build", "r.yaml").stdout
    assert "repaired" not in said("build", "--repair", "r.yaml").stdout
    assert "--- training sequence " in said("show", "r.yaml", "-n", "1").stdout
    assert "sequence 99 not found" in said("show", "r.yaml", "--row", "99", code=2).stderr
    assert "█" in said("stats", "r.yaml").stdout
    assert said("stats", "r.yaml", "-o", "a.svg").stdout == "a.svg\n" and Path("a.svg").is_file()
    Path("train.jsonl").write_text('{"text": "torn\n')
    assert "train.jsonl' line 1" in said("build", "r.yaml", code=3).stderr
    assert "'train.jsonl' is missing or has changed since" in said("verify").stdout
    assert "1 removed" in said("prune", "--yes").stderr


def test_the_data_of_a_run_is_shown_by_its_directory(
    asked: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("runs/one")
    (run / "data").mkdir(parents=True)
    resolved = resolve_recipe("r.yaml", ["dump_folder=runs/one"], environment={})
    (run / "resolved.yaml").write_text(resolved.text)
    for named in (run, run / "resolved.yaml"):
        assert command.run(["show", str(named), "-n", "1"]) == 0
        assert "--- training sequence" in capsys.readouterr().out
    assert len(list((run / "data").glob("*.npy"))) == 2
    with pytest.raises(ProblemsFound, match="does not exist yet"):
        command.run(["show", "r.yaml", "dump_folder=runs/two"])


def test_a_recipe_with_a_folder_that_was_trained_in_shows_its_data(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"version: 1\ndump_folder: {tmp_path}/run\nmodel: {{name: llama3, flavor: debugmodel}}\n"
        "tokenizer: tiny\ntraining: {dataset: tiny, seq_len: 32, steps: 2}\n"
    )
    parser = CommandParser("data show", "", "")
    with pytest.raises(ProblemsFound, match="which does not exist yet"):
        parse_recipe_options(parser, [str(recipe)])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.yaml").write_text(
        resolve_recipe(str(recipe), environment={}).text
    )
    _, found = parse_recipe_options(CommandParser("data show", "", ""), [str(recipe)])
    assert found.run.training.data_cache == f"{tmp_path}/run/data"
