"""The command that follows a run, in the last line of its console."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from titanrun.components.checkpoints.spec.manifest import format_manifest, read_manifest
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.train_hook import TrainResult
from titanrun.worker.next_command import (
    can_be_exported,
    can_be_used,
    choose_export_folder,
    choose_use,
    format_next_command,
)
from titanrun.worker.rank_main import main

FINISHED = TrainResult("finished", 10, "finished: 10 steps")


def test_a_run_ends_with_what_its_checkpoint_can_do(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "training.steps=2")
    assert main([str(resolved)]) == 0
    folder = resolved.parent
    prompt = f"next: titanrun generate {folder} --prompt 'Once upon a time'"
    export = f"titanrun checkpoint export {folder} out --format hf"
    assert capsys.readouterr().err.splitlines()[-1] == f"{prompt}     {export}"
    # as a tokenizer with a chat template is saved: this model has seen no conversation
    (folder / "checkpoint" / "step-2" / "chat_template.jinja").write_text("{{ messages }}")
    assert format_next_command(folder, FINISHED) == f"{prompt}     {export}"
    stopped = TrainResult("preempted", 2, "stopped")
    assert format_next_command(folder, stopped) == f"next: titanrun resume {folder}"
    (folder.parent / "stages.yaml").touch()
    assert format_next_command(folder, stopped) == f"next: titanrun resume {folder.parent}"


def test_a_run_that_keeps_the_best_checkpoint_names_it_unless_it_is_the_newest(
    run: Callable[..., Path],
) -> None:
    keeps = ("checkpoint.interval=1", "checkpoint.keep_best=1", "validation.freq=1")
    data = (
        "training.dataset=tiny",
        "tokenizer=tiny",
        "model.vocab_size=2048",
        "validation.enable=true",
        "validation.steps=1",
    )
    resolved = run("run", "training.steps=2", *data, *keeps)
    assert main([str(resolved)]) == 0
    folder = resolved.parent
    prompt = "--prompt 'Once upon a time'"
    for first, named in ((1.0, folder / "checkpoint" / "step-1"), (9.0, folder)):
        for step, loss in ((1, first), (2, 2.0)):
            file = folder / "checkpoint" / f"step-{step}"
            measured = replace(read_manifest(file), validation_loss=loss)
            (file / "manifest.json").write_text(format_manifest(measured))
        assert format_next_command(folder, FINISHED) == (
            f"next: titanrun generate {named} {prompt}     "
            f"titanrun checkpoint export {named} out --format hf"
        )


def test_a_run_that_saves_nothing_has_its_metrics(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "training.steps=2", "checkpoint.enable=false")
    assert main([str(resolved)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"next: titanrun plot {resolved.parent}"


def test_adapters_are_exported_within_the_weights(run: Callable[..., Path]) -> None:
    resolved = run("run", "training.steps=1", "converters=[lora]")
    assert main([str(resolved)]) == 0
    assert format_next_command(resolved.parent, FINISHED).endswith("out --format hf --merge")


def test_a_model_without_generation_is_only_exported(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 2048}
    sizes |= {"max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", **sizes}))
    change = [f"model={{name: transformers, path: {tmp_path}}}"]
    for shipped in ("llama3_debug", "flux_debug"):
        recipe = resolve_recipe(shipped, environment={}).recipe
        assert (can_be_used(recipe), can_be_exported(recipe)) == (True, True)
    reward = resolve_recipe("llama3_reward_debug", environment={}).recipe
    assert (can_be_used(reward), can_be_exported(reward)) == (False, True)
    recipe = resolve_recipe("llama3_debug", change, environment={}).recipe
    assert (can_be_used(recipe), can_be_exported(recipe)) == (False, True)


@pytest.mark.parametrize(
    ("recipe", "overrides", "command"),
    [
        ("llama3_debug", [], "generate"),
        ("llama3_debug", ["checkpoint.initial_load_path=runs/chat/checkpoint/step-2"], "chat"),
        ("llama3_sft_debug", [], "chat"),
        ("llama3_orpo_debug", [], "chat"),
    ],
)
def test_a_model_converses_if_it_has_learned_from_conversations(
    recipe: str, overrides: list[str], command: str, tmp_path: Path
) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    trained = resolve_recipe(recipe, overrides, environment={}).recipe
    assert choose_use(Path("run"), tmp_path, trained)[0] == command


def test_the_folder_of_an_export_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = Path("runs/mine")
    assert choose_export_folder(run_dir) == "out"
    for taken, then in (("out", "mine-hf"), ("mine-hf", "mine-hf-2")):
        Path(taken).mkdir()
        assert choose_export_folder(run_dir) == then
