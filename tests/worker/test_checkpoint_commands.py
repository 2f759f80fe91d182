"""`titanrun checkpoint`, `resume` and `fork`: everything from the checkpoint alone."""

import fcntl
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp
from transformers import AutoModelForCausalLM, GenerationConfig

from titanrun.cli import checkpoint as command
from titanrun.cli import fork, resume
from titanrun.cli.checkpoint_convert import DEFAULT_SHARD_BYTES
from titanrun.components.checkpoints.dcp_io import read_tensor_metadata, read_tensors
from titanrun.components.checkpoints.spec.manifest import (
    format_manifest,
    list_step_folders,
    read_manifest,
)
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.recipe.rundir.run_files import read_boot_id, read_json_or_empty
from titanrun.worker.commands import checkpoint as worker
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
PLAIN = {"merge": False, "dtype": None, "shard_bytes": DEFAULT_SHARD_BYTES}


@pytest.fixture
def trained(run: Run) -> Path:
    """The directory of a run with checkpoints of steps 4, 8 and 10."""
    resolved = run("trained", "checkpoint.interval=4")
    assert main([str(resolved)]) == 0
    return resolved.parent


def in_worker(job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The worker of the command, in this process."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
    return worker.main()


def titanrun(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *arguments], capture_output=True, text=True, check=False
    )


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    layouts = {
        name: layout
        for name, layout in read_tensor_metadata(folder).items()
        if name.startswith("model.")
    }
    tensors = {
        name: torch.empty(layout.shape, dtype=layout.dtype) for name, layout in layouts.items()
    }
    read_tensors(folder, tensors)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_ls_and_show_tell_what_the_manifests_say(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / "checkpoint" / "step-8" / "manifest.json").unlink()
    assert command.run(["ls", str(trained)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        str(trained / "checkpoint" / f"step-{step}") for step in (4, 8, 10)
    ]
    assert "everything" in lines[0] and "BAD" in lines[1] and "manifest.json" in lines[1]
    assert command.run(["ls", str(trained), "--format", "json"]) == 0
    assert [json.loads(line).get("step") for line in capsys.readouterr().out.splitlines()] == [
        4,
        None,
        10,
    ]
    assert command.run(["ls", str(trained / "checkpoint" / "step-10")]) == 0
    assert capsys.readouterr().out.splitlines() == lines[2:]
    assert command.run(["show", str(trained), "--tensors"]) == 0
    shown = capsys.readouterr().out
    assert (
        "model.layers.1.attention.wk.weight  float32[16, 32]" in shown
        and f"torch {torch.__version__}" in shown
    )
    assert re.search(r"^layout +1 rank$", shown, re.MULTILINE)


def test_show_tells_how_many_ranks_saved_and_what_they_split(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained / "checkpoint" / "step-10"
    manifest = read_manifest(folder)
    degrees = {"ranks": 4, "data_parallel_shard_degree": 2, "tensor_parallel_degree": 2}
    (folder / "manifest.json").write_text(
        format_manifest(replace(manifest, layout={**manifest.layout, **degrees}))
    )
    assert command.run(["show", str(trained)]) == 0
    layout = re.search(r"^layout +(.*)$", capsys.readouterr().out, re.MULTILINE)
    assert (
        layout is not None
        and layout[1] == "4 ranks, data_parallel_shard_degree 2, tensor_parallel_degree 2"
    )


def test_verify_names_the_bad_file_and_exits_with_4(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["verify", str(trained)]) == 0
    assert capsys.readouterr().out.count(": ok") == 3
    flip(trained / "checkpoint" / "step-8" / "__0_0.distcp")
    assert command.run(["verify", str(trained)]) == 4
    assert "step-8: __0_0.distcp has other bytes than were saved" in capsys.readouterr().out
    assert command.run(["verify", str(trained / "checkpoint" / "step-4")]) == 0


def test_diff_by_name_and_by_value(
    run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shallow = run("shallow", "model.n_layers=1")
    assert main([str(shallow)]) == 0
    assert command.run(["diff", str(trained), str(trained), "--names"]) == 0
    capsys.readouterr()
    assert command.run(["diff", str(trained), str(shallow.parent), "--names"]) == 1
    assert "- model.layers.1.ffn_norm.weight  float32[32]" in capsys.readouterr().out.splitlines()
    steps = {
        side: str(trained / "checkpoint" / f"step-{step}") for side, step in (("a", 4), ("b", 8))
    }
    assert in_worker({"do": "diff", **steps}, monkeypatch) == 1
    assert "~ model.norm.weight  32 of 32 values differ, by " in capsys.readouterr().out
    assert in_worker({"do": "diff", **steps, "b": steps["a"]}, monkeypatch) == 0


def test_prune_deletes_what_no_option_keeps(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained / "checkpoint"
    (folder / "step-2.damaged-0123abcd").mkdir()
    (folder / "notes").mkdir()
    with pytest.raises(ProblemsFound, match="no checkpoints selected for deletion"):
        command.run(["prune", str(trained)])
    assert command.run(["prune", str(trained), "--keep", "1", "--every", "4", "--dry-run"]) == 0
    assert capsys.readouterr().out == ""
    assert command.run(["prune", str(trained), "--keep", "1", "--every", "8", "--set-aside"]) == 0
    assert sorted(entry.name for entry in folder.iterdir()) == ["notes", "step-10", "step-8"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ((), ["step-10", "step-4"]),
        (("--best", "0"), ["step-10"]),
        (("--best", "0", "--every", "8"), ["step-10", "step-8"]),
        (("--every", "8"), ["step-10", "step-4", "step-8"]),
    ],
)
@pytest.mark.parametrize("place", ["", "checkpoint"])
def test_prune_keeps_the_best_checkpoints_that_the_recipe_keeps(
    words: tuple[str, ...], left: list[str], place: str, trained: Path
) -> None:
    folder, recipe = trained / "checkpoint", trained / "resolved.yaml"
    for step, loss in ((4, 1.0), (8, 2.0), (10, 3.0)):
        measured = replace(read_manifest(folder / f"step-{step}"), validation_loss=loss)
        (folder / f"step-{step}" / "manifest.json").write_text(format_manifest(measured))
    recipe.write_text(recipe.read_text().replace("keep_best: 0", "keep_best: 1"))
    assert command.run(["prune", str(trained / place), "--keep", "1", *words]) == 0
    assert sorted(entry.name for entry in folder.iterdir()) == left


def test_prune_never_deletes_what_it_cannot_read(trained: Path) -> None:
    (trained / "checkpoint" / "step-4" / "manifest.json").unlink()
    assert command.run(["prune", str(trained), "--keep", "1"]) == 0
    assert list(list_step_folders(trained / "checkpoint")) == [4, 10]


def test_rm_lists_named_checkpoints_and_deletes_them_with_yes(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained / "checkpoint"
    measured = replace(read_manifest(folder / "step-4"), validation_loss=1.0)
    (folder / "step-4" / "manifest.json").write_text(format_manifest(measured))
    assert command.run(["rm", str(trained), "4", "step-10"]) == 0
    told = capsys.readouterr()
    first, second = told.out.splitlines()
    assert re.fullmatch(rf"{folder}/step-4  \d+\.\d MiB  the best one: .*", first)
    assert second.endswith("MiB  the newest one: a resume begins with it")
    assert told.err == "nothing was deleted; use --yes to delete\n"
    assert list(list_step_folders(folder)) == [4, 8, 10]
    assert command.run(["rm", str(folder / "step-4"), str(folder / "step-8"), "--yes"]) == 0
    assert sorted(entry.name for entry in folder.iterdir()) == ["step-10"]
    capsys.readouterr()
    assert command.run(["rm", str(trained), "10", "--yes"]) == 0
    assert "the last one: no other one is left" in capsys.readouterr().out
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("words", "told", "help_text"),
    [
        ([""], "no checkpoint is named", "steps of 4, 8 and 10: titanrun checkpoint rm RUN 4"),
        (["", "3"], "'RUN' has no checkpoint 3", "its checkpoints are of steps 4, 8 and 10"),
        (["step-3"], "'RUN' has no checkpoint step-3", "its checkpoints are of steps 4, 8 and 10"),
        (["", "/other/step-4"], "'RUN' has no checkpoint /other/step-4", "steps 4, 8 and 10"),
    ],
)
def test_rm_names_the_checkpoints_that_there_are(
    words: list[str], told: str, help_text: str, trained: Path
) -> None:
    with pytest.raises(ProblemsFound) as found:
        command.run(["rm", str(trained / words[0]), *words[1:], "--yes"])
    (problem,) = found.value.problems
    assert problem.message == told.replace("RUN", str(trained))
    assert problem.hint is not None
    assert problem.hint.endswith(help_text.replace("RUN", str(trained)))
    assert len(list_step_folders(trained / "checkpoint")) == 3


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("shard_bytes", [DEFAULT_SHARD_BYTES, 20_000])
def test_the_export_for_transformers_has_the_same_weights(
    trained: Path,
    tmp_path: Path,
    dtype: str | None,
    shard_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, out = trained / "checkpoint" / "step-4", tmp_path / "out"
    asked = {
        "checkpoint": str(step),
        "out": str(out),
        "format": "hf",
        "merge": False,
        "dtype": dtype,
        "shard_bytes": shard_bytes,
    }
    assert in_worker({"do": "export", **asked}, monkeypatch) == 0
    assert (out / "model.safetensors.index.json").exists() == (shard_bytes < DEFAULT_SHARD_BYTES)
    theirs = AutoModelForCausalLM.from_pretrained(out)
    assert str(theirs.dtype) == f"torch.{dtype or 'float32'}"
    expected = weights_of(step)["output.weight"]
    assert torch.equal(theirs.lm_head.weight, expected.to(theirs.dtype))
    assert GenerationConfig.from_pretrained(out).eos_token_id is None


def test_an_export_needs_nothing_but_the_checkpoint(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(trained / "checkpoint" / "step-4", tmp_path / "elsewhere" / "step-4")
    expected = weights_of(moved)
    (tmp_path / "tokens.npy").unlink()
    shutil.rmtree(trained)
    done = titanrun(
        "checkpoint", "export", str(moved), str(tmp_path / "weights.pt"), "--format", "torch"
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'weights.pt'}\n")
    assert done.stderr == f"next: titanrun serve {moved}\n"
    asked = {
        "checkpoint": str(moved),
        "out": str(tmp_path / "weights"),
        "format": "safetensors",
        **PLAIN,
    }
    assert in_worker({"do": "export", **asked}, monkeypatch) == 0
    loaded = torch.load(tmp_path / "weights.pt", weights_only=True)
    other = safetensors.torch.load_file(tmp_path / "weights" / "model.safetensors")
    assert loaded.keys() == other.keys() == expected.keys()
    assert all(
        torch.equal(loaded[name], tensor) and torch.equal(other[name], tensor)
        for name, tensor in expected.items()
    )


def test_nothing_is_exported_from_a_damaged_checkpoint_or_over_something(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = trained / "checkpoint" / "step-4"
    with pytest.raises(ProblemsFound, match="never overwritten"):
        command.run(["export", str(step), str(trained), "--format", "hf"])
    flip(step / "__0_0.distcp")
    asked = {"checkpoint": str(step), "out": str(tmp_path / "out"), "format": "torch", **PLAIN}
    assert in_worker({"do": "export", **asked}, monkeypatch) == 4
    assert "has other bytes than were saved" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def imported(
    source: Path, origin: str, resolved: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, torch.Tensor]:
    job = {
        "do": "import",
        "from": origin,
        "source": str(source),
        "out": str(out),
        "resolved": resolved.read_text(),
    }
    assert in_worker(job, monkeypatch) == 0
    return weights_of(out / "step-0")


@pytest.mark.parametrize("tied", ["false", "true"])
def test_weights_come_back_from_every_format(
    run: Run, tmp_path: Path, tied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tie = f"model.tie_word_embeddings={tied}"
    resolved = run("run", tie, "checkpoint.last_save_in_hf=true")
    assert main([str(resolved)]) == 0
    step = resolved.parent / "checkpoint" / "step-10"
    expected = weights_of(step)
    with pytest.warns(UserWarning, match="single process"):
        # as torchtitan saves: parameters by name, pickled state beside them
        dcp.save(
            {**expected, "train_state": {"step": torch.tensor(3)}, "dataloader": Strange()},
            checkpoint_id=tmp_path / "dcp",
        )
    sources = {"hf": resolved.parent / "hf", "torchtitan": tmp_path / "dcp", "titanrun": step}
    for origin, source in sources.items():
        found = imported(source, origin, resolved, tmp_path / origin, monkeypatch)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), origin
    first = run("second", tie, f"checkpoint.initial_load_path={tmp_path / 'hf' / 'step-0'}")
    assert main([str(first)]) == 0


class Strange:
    """What only unpickling would bring back."""


def test_weights_of_another_model_are_refused_by_name(
    run: Run,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deeper = run(
        "deeper", "model.n_layers=3", "model.vocab_size=32", "training.dataset.path=none.npy"
    )
    job = {
        "do": "import",
        "from": "titanrun",
        "source": str(trained / "checkpoint" / "step-4"),
        "resolved": deeper.read_text(),
    }
    assert in_worker({**job, "out": str(tmp_path / "out")}, monkeypatch) == 4
    said = capsys.readouterr().err
    assert (
        "missing: layers.2." in said
        and "different shape: output.weight (float32[64, 32], wanted float32[32, 32])" in said
    )


def test_a_run_goes_on_without_its_recipe(run: Run, tmp_path: Path) -> None:
    resolved = run("run", "checkpoint.interval=4")
    assert main([str(resolved)]) == 0
    (tmp_path / "recipe.yaml").unlink()
    # a schedule that nobody derived is not changed without being asked for
    kept = "lr_scheduler.total_steps=10"
    done = titanrun("resume", str(resolved.parent), "training.steps=12", kept)
    assert done.returncode == 0, done.stderr
    assert "resuming after step 10" in done.stderr
    assert list(list_step_folders(resolved.parent / "checkpoint")) == [4, 8, 10, 12]


def test_resume_knows_a_run_from_a_checkpoint_inside_and_outside_of_it(
    trained: Path, tmp_path: Path
) -> None:
    run_dir, step = str(trained / "resolved.yaml"), trained / "checkpoint" / "step-8"
    assert resume.build_resume_arguments(trained) == [
        run_dir,
        f"dump_folder={json.dumps(str(trained))}",
    ]
    assert resume.build_resume_arguments(step) == [
        run_dir,
        f"dump_folder={json.dumps(str(trained))}",
        "checkpoint.load_step=8",
    ]
    assert resume.build_resume_arguments(trained / "checkpoint" / "step-10") == [
        run_dir,
        f"dump_folder={json.dumps(str(trained))}",
    ]
    moved = shutil.copytree(step, tmp_path / "backup" / "step-8")
    found = resume.build_resume_arguments(moved)
    assert found[0] == str(moved / "resolved.yaml")
    assert "checkpoint.initial_load_model_only=false" in found
    # a run that began with a Hugging Face folder does not begin there again
    assert "checkpoint.initial_load_in_hf=false" in found
    elsewhere = resume.build_resume_arguments(step, in_new_folder=True)
    assert elsewhere[0] == str(step / "resolved.yaml")
    assert elsewhere[1:] == [found[1].replace(str(moved), str(step)), *found[2:]]
    with pytest.raises(ProblemsFound, match="neither a checkpoint nor a run directory"):
        resume.build_resume_arguments(tmp_path)
    with pytest.raises(ProblemsFound) as missing:
        resume.build_resume_arguments(tmp_path / "bakcup")
    (problem,) = missing.value.problems
    assert problem.message == f"folder not found: '{tmp_path / 'bakcup'}'"
    assert problem.hint == f"did you mean '{tmp_path / 'backup'}'?"
    for absent in (trained / "step-3", trained / "checkpoint" / "step-3"):
        with pytest.raises(ProblemsFound) as missing:
            resume.build_resume_arguments(absent)
        steps = [f"'{trained}/checkpoint/step-{step}'" for step in (4, 8, 10)]
        told = f"the checkpoints there are {steps[0]}, {steps[1]} and {steps[2]}"
        assert missing.value.problems[0].hint == told


def test_another_folder_is_for_a_checkpoint_not_for_a_run(trained: Path) -> None:
    words, step = ["dump_folder=other"], trained / "checkpoint/step-10"
    assert resume.names_new_folder(str(step), words)
    assert not resume.names_new_folder(str(step), ["training.steps=20"])
    with pytest.raises(ProblemsFound, match="takes no other dump_folder") as found:
        resume.names_new_folder(str(trained), words)
    assert f"titanrun resume {step} dump_folder=other" in str(found.value.problems[0].hint)


def test_a_checkpoint_under_another_name_is_no_run_directory(trained: Path, tmp_path: Path) -> None:
    copies = [tmp_path / "copy", trained / "checkpoint" / "step-8.superseded-0123abcd"]
    for copy in copies:
        shutil.copytree(trained / "checkpoint" / "step-8", copy)
        found = resume.build_resume_arguments(copy)
        assert (
            found[0] == str(copy / "resolved.yaml")
            and f"checkpoint.initial_load_path={json.dumps(str(copy))}" in found
        )
        assert "checkpoint.initial_load_model_only=false" in found and not any(
            "dump_folder" in word for word in found
        )
    (copies[0] / "manifest.json").unlink()
    done = titanrun("resume", str(copies[0]))
    assert done.returncode == 2 and "is a checkpoint, or the remains of one" in done.stderr
    assert not (copies[0] / "run.json").exists()


def test_a_fork_starts_from_the_weights_and_names_its_parent(trained: Path, tmp_path: Path) -> None:
    step, child = trained / "checkpoint" / "step-8", tmp_path / "child"
    done = titanrun(
        "fork", str(step), "training.steps=3", "optimizer.lr=1e-4", f"dump_folder={child}"
    )
    assert done.returncode == 0, done.stderr
    assert "loaded initial weights from" in done.stderr
    record = json.loads((child / "run.json").read_text())
    seen = {line["step"]: line["tokens_seen"] for line in read_metrics(trained / "metrics.jsonl")}
    assert record["parent"] == {
        "run": str(trained),
        "checkpoint": str(step),
        "step": 8,
        "tokens": seen[8],
        "recipe": read_manifest(step).recipe,
    }
    assert list(list_step_folders(child / "checkpoint")) == [3]


@pytest.mark.parametrize(
    ("step", "told"),
    [(4, "titanrun fork {}/checkpoint/step-4 debug.seed=1"), (5, "'{}/checkpoint/step-4', ")],
)
def test_a_fork_names_the_checkpoint_in_place_of_load_step(
    step: int, told: str, trained: Path
) -> None:
    for place in (trained, trained / "checkpoint" / "step-8"):
        with pytest.raises(ProblemsFound) as error:
            fork.run([str(place), f"checkpoint.load_step={step}", "debug.seed=1"])
        (problem,) = error.value.problems
        assert problem.origin is not None and told.format(trained) in str(problem.hint)


def test_a_fork_of_a_run_passes_over_its_damaged_checkpoints(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {step: trained / "checkpoint" / f"step-{step}" for step in (4, 8, 10)}
    told: list[list[str]] = []
    monkeypatch.setattr(fork.train, "run", lambda arguments: told.append(arguments) or 0)
    flip(next(folders[10].glob("*.distcp")))
    (folders[8] / "manifest.json").unlink()
    assert fork.run([str(trained), "training.steps=3"]) == 0
    assert resume.format_override("checkpoint.initial_load_path", str(folders[4])) in told[
        0
    ] and told[0][0] == str(folders[4] / "resolved.yaml")
    assert re.fullmatch(
        rf"warning: {folders[10]} cannot be used: \S+ has other bytes than were saved\n",
        capsys.readouterr().err,
    )
    flip(folders[4] / "resolved.yaml")
    with pytest.raises(ProblemsFound) as error:
        fork.run([str(trained)])
    assert [
        (problem.code, str(folders[step]) in problem.message)
        for problem, step in zip(error.value.problems, (10, 4), strict=True)
    ] == [("checkpoint", True)] * 2


def test_the_weights_of_another_run_come_in_without_a_recipe(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "titanrun.cli.checkpoint_convert.run_checkpoint_worker",
        lambda job: in_worker(job, monkeypatch),
    )
    assert command.run(["import", str(trained), str(tmp_path / "out"), "--from", "titanrun"]) == 0
    assert list(list_step_folders(tmp_path / "out")) == [0], capsys.readouterr().err
    assert command.run(["export", str(trained), str(tmp_path / "hf"), "--format", "hf"]) == 0
    assert (
        command.run(["import", str(tmp_path / "hf"), str(tmp_path / "back"), "--from", "hf"]) == 0
    )
    first, second = (weights_of(tmp_path / folder / "step-0") for folder in ("out", "back"))
    assert first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
    recipe, out = str(trained / "resolved.yaml"), str(tmp_path / "again")
    capsys.readouterr()
    own = [f"checkpoint.{key}" for key in ("initial_load_path=null", "keep_latest_k=3")]
    assert command.run(["import", str(trained), recipe, out, "--from", "titanrun", *own]) == 0
    trains = f"next: titanrun train {recipe} {own[1]} checkpoint.initial_load_path={out}/step-0\n"
    assert capsys.readouterr().err.endswith(trains)
    with pytest.raises(ProblemsFound, match="adapters require a recipe"):
        command.run(["import", str(trained), str(tmp_path / "other"), "--from", "peft"])


def saved_by_torchtitan(
    folder: Path, *, family: str, flavor: str, **changes: Any
) -> dict[str, torch.Tensor]:
    """Weights of a flavor, by torchtitan's names, as it saves them; its sizes changed."""
    sizes = {"name": family, "flavor": flavor, "vocab_size": 64, **changes}
    data = {"name": "tokens", "path": "none.npy"}
    (folder.parent / "theirs.yaml").write_text(
        json.dumps({"version": 1, "model": sizes, "tokenizer": None, "training": {"dataset": data}})
    )
    config = resolve_recipe(str(folder.parent / "theirs.yaml"), environment={}).run.model
    model = config.load_builder()(config, seq_len=8)
    model.init_weights(generator=torch.Generator().manual_seed(1))
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({**weights, "optimizer.count": torch.ones(3)}, checkpoint_id=folder)
    return weights


def test_torchtitans_weights_come_in_without_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "titanrun.cli.checkpoint_convert.run_checkpoint_worker",
        lambda job: in_worker(job, monkeypatch),
    )
    expected = saved_by_torchtitan(tmp_path / "theirs", family="llama3", flavor="debugmodel")
    words = ["import", str(tmp_path / "theirs"), str(tmp_path / "out"), "--from", "torchtitan"]
    assert command.run(words) == 0, capsys.readouterr().err
    found = weights_of(tmp_path / "out" / "step-0")
    assert found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )
    model = load_resolved(tmp_path / "out" / "step-0" / "resolved.yaml").model
    assert (model.name, model.flavor, model.vocab_size) == ("llama3", "debugmodel", 64)
    with pytest.raises(ProblemsFound, match="overrides need one that is named"):
        command.run([*words[:2], str(tmp_path / "second"), *words[3:], "model.n_layers=2"])


@pytest.mark.parametrize(
    ("family", "flavor", "changes", "said"),
    [
        (
            "llama3",
            "debugmodel",
            {"n_heads": 16, "n_kv_heads": 2},
            "match no known flavor",
        ),
        (
            "llama4",
            "debugmodel",
            {},
            "match several flavors: llama4 debugmodel and llama4 debugmodel_irope",
        ),
    ],
)
def test_torchtitans_weights_that_tell_no_model_need_a_recipe(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    family: str,
    flavor: str,
    changes: Any,
    said: str,
) -> None:
    monkeypatch.setattr(
        "titanrun.cli.checkpoint_convert.run_checkpoint_worker",
        lambda job: in_worker(job, monkeypatch),
    )
    saved_by_torchtitan(tmp_path / "theirs", family=family, flavor=flavor, **changes)
    assert (
        command.run(
            ["import", str(tmp_path / "theirs"), str(tmp_path / "out"), "--from", "torchtitan"]
        )
        == 4
    )
    err = capsys.readouterr().err
    assert said in err and "pass the recipe of its model" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["ls"], ["prune", "--keep", "1"], ["verify"], ["show"]])
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(ProblemsFound) as found:
        command.run([*words, str(tmp_path / "nowhere")])
    assert found.value.exit_code == 4


def test_nothing_is_pruned_below_a_run_that_trains(trained: Path) -> None:
    with (trained / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for named in (trained, trained / "checkpoint"):
            with pytest.raises(ProblemsFound, match="a run is training"):
                command.run(["prune", str(named), "--keep", "1"])
            with pytest.raises(ProblemsFound) as found:
                command.run(["rm", str(named), "4", "--yes"])
            hint = found.value.problems[0].hint
            assert hint is not None and hint.endswith(f"titanrun stop {trained} --wait")
    assert len(list_step_folders(trained / "checkpoint")) == 3


@pytest.mark.parametrize("words", [["ls"], ["verify"], ["show"], ["prune", "--keep", "1"]])
def test_an_address_with_credentials_is_refused_without_showing_them(words: list[str]) -> None:
    with pytest.raises(
        ProblemsFound, match=r"'memory://\*\*\*@bucket/run' is not a valid storage URL"
    ) as found:
        command.run([*words, "memory://me:hunter2@bucket/run"])
    assert "hunter2" not in str(found.value.problems)


@pytest.mark.parametrize("pid", [-1, 0, 1, True, "1", None, 10**30, "bystander"])
def test_a_signal_is_sent_to_the_process_that_trains_alone(tmp_path: Path, pid: object) -> None:
    """Row B6 of the defect list: what a file names is not trusted. -1 is every process."""
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = {
        "state": "running",
        "pid": bystander.pid if pid == "bystander" else pid,
        "host": socket.gethostname(),
        "boot_id": read_boot_id(),
    }
    (tmp_path / "status.json").write_text(json.dumps(status))
    try:
        with (tmp_path / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(ProblemsFound, match="which does not train the run"):
                command.run(["now", str(tmp_path), "--timeout", "0"])
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.communicate()


def test_a_run_that_trains_saves_when_it_is_asked(run: Run) -> None:
    resolved = run(
        "run",
        "training.steps=100000",
        "lr_scheduler.total_steps=100000",
        "checkpoint.interval=1000000",
    )
    with pytest.raises(ProblemsFound, match="no run is training"):
        command.run(["now", str(resolved.parent)])
    process = subprocess.Popen(
        [sys.executable, "-m", "titanrun.worker", str(resolved)], stderr=subprocess.DEVNULL
    )
    try:
        while read_json_or_empty(resolved.parent / "status.json").get("state") != "running":
            assert process.poll() is None
            time.sleep(0.05)
        assert command.run(["now", str(resolved.parent), "--timeout", "60"]) == 0
        (step,) = list_step_folders(resolved.parent / "checkpoint")
        assert step > 0 and process.poll() is None
        with pytest.raises(ProblemsFound, match="a run is training"):
            command.run(["prune", str(resolved.parent), "--keep", "1"])
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
