"""`titanrun train` of a recipe with stages."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from titanrun.launch.launch_env import build_stop_after_environment
from titanrun.recipe.resolving.resolve import load_resolved

RECIPE = """version: 1
name: both
extends: [shipped:parts/fp32.yaml]
device: cpu
model: {name: llama3, flavor: debugmodel, dim: 32, n_layers: 2, n_heads: 4}
training: {dataset: tiny, local_batch_size: 2, seq_len: 32, steps: 4}
checkpoint: {enable: true, interval: 2}
metrics: {log_freq: 1}
stages:
  - id: pretrain
  - id: sft
    training: {dataset: tiny_chat, steps: 6}
"""


def titanrun(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    command = [sys.executable, "-m", "titanrun", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)
    return done.returncode, done.stderr


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_each_stage_starts_from_the_one_before_and_none_is_trained_twice(tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text(RECIPE)
    assert titanrun(tmp_path, "train", "both.yaml", "dump_folder=whole")[0] == 0
    whole = tmp_path / "whole"
    assert (
        load_resolved(whole / "sft" / "resolved.yaml").checkpoint.initial_load_path
        == "whole/pretrain"
    )
    assert json.loads((whole / "sft" / "run.json").read_text())["parent"]["step"] == 4

    # stopped within the first stage, then within the second: the same command goes on there
    for step, trained in ((3, (3, None)), (5, (4, 5))):
        code, said = titanrun(
            tmp_path,
            "train",
            "both.yaml",
            "dump_folder=parts",
            env=build_stop_after_environment(step),
        )
        assert code == 75, said
        found = tuple(
            len(losses(run)) if run.exists() else None
            for run in (tmp_path / "parts" / stage for stage in ("pretrain", "sft"))
        )
        assert found == trained
    assert titanrun(tmp_path, "resume", "parts")[0] == 0
    for stage in ("pretrain", "sft"):
        assert losses(tmp_path / "parts" / stage) == losses(whole / stage)

    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    code, said = titanrun(tmp_path, "train", "both.yaml", "dump_folder=whole")
    assert (code, said) == (
        0,
        "nothing to do: stages pretrain and sft are finished in whole\n"
        "to train on, with a length of your choice: "
        "titanrun resume whole stages.sft.training.steps=12\n",
    )
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before

    # weights that a later stage began with are those of a finished stage
    code, said = titanrun(
        tmp_path, "train", "both.yaml", "dump_folder=whole", "stages.pretrain.training.steps=5"
    )
    assert code == 2
    assert "stage 'pretrain' would train on, but stage 'sft' started from its step 4" in said
    assert "set the steps of 'sft' alone: stages.sft.training.steps" in said
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    # as after `titanrun resume whole/pretrain training.steps=5`
    shutil.copytree(whole / "pretrain/checkpoint/step-4", whole / "pretrain/checkpoint/step-5")
    more = "stages.sft.training.steps=7"
    code, said = titanrun(tmp_path, "train", "both.yaml", "dump_folder=whole", more)
    assert code == 2
    assert "stage 'sft' started from step 4 of stage 'pretrain', which is now at step 5" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("both.yaml#sft",),
            "stage 'sft' starts from stage 'pretrain', which is not trained with it",
        ),
        (("both.yaml", "dump_folder=used"), "'used' is not empty and contains no stages"),
        (("both.yaml", "stages.sft.optimizer.lr=fast"), "expected a number"),
        # the first stage is broken: the second has none to start from
        (("both.yaml", "stages.pretrain.optimizer.lr=fast"), "expected a number"),
    ],
)
def test_nothing_is_written_for_stages_that_cannot_be_trained(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "both.yaml").write_text(RECIPE)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    code, said = titanrun(tmp_path, "train", *arguments)
    assert (code, message in said) == (2, True), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.yaml", "used"]


def test_an_archived_stage_is_not_trained_anew(tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text(RECIPE)
    (tmp_path / "whole/.archive/sft").mkdir(parents=True)
    (tmp_path / "whole/stages.yaml").write_text(RECIPE)
    code, said = titanrun(tmp_path, "train", "both.yaml", "dump_folder=whole")
    assert (code, "the run 'whole/sft' is archived" in said) == (2, True), said
    assert "titanrun runs archive --restore whole/.archive/sft" in said
    assert not (tmp_path / "whole/pretrain").exists()
