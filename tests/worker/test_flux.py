"""Runs of flux: it learns the pictures that ship, goes on as if never stopped, draws pictures, and
takes weights from outside."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from diffusers import FluxTransformer2DModel
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from titanrun.cli import generate as command
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.launch import worker_command
from titanrun.models.flux.autoencoder import FluxAutoencoder
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.huggingface import to_huggingface_config
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands import checkpoint as checkpoint_worker
from titanrun.worker.commands import data as data_worker
from titanrun.worker.commands import generate as worker
from titanrun.worker.rank_main import main

RECIPE = """
version: 1
name: pictures
device: cpu
model: {name: flux, flavor: tiny, encoder: {max_t5_encoding_len: 6}}
loss: flow_matching
optimizer: {lr: 2.0e-3}
lr_scheduler: {warmup_steps: 2, decay_ratio: 0.0}
training: {dataset: {name: tiny_images, image_size: 32}, local_batch_size: 4, seq_len: 10, steps: 4,
           mixed_precision_param: float32}
metrics: {log_freq: 1}
validation: {enable: true, freq: 4}
checkpoint: {enable: true, interval: 100, keep_latest_k: 0}
"""


def train(parent: Path, folder: str, *overrides: str) -> Path:
    """Trains the recipe with overrides and gives the run directory."""
    (parent / "recipe.yaml").write_text(RECIPE)
    resolved = parent / folder / "resolved.yaml"
    resolved.parent.mkdir(exist_ok=True)
    resolved.write_text(resolve_recipe(str(parent / "recipe.yaml"), overrides, environment={}).text)
    assert main([str(resolved)]) == 0
    return resolved.parent


def figures(run: Path, name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(run / "metrics.jsonl") if name in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("pictures"), "run")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5, a CLIP and an autoencoder, tiny and random, and the words that both tokenizers know."""
    parent = tmp_path_factory.mktemp("outside")
    torch.manual_seed(0)
    t5 = T5EncoderModel(
        T5Config(vocab_size=10, d_model=64, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
    )
    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=10,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            eos_token_id=2,
        )
    )
    for name, model in {"t5": t5, "clip": clip}.items():
        model.save_pretrained(parent / name)
        word_tokenizer(parent / name)
    autoencoder = FluxAutoencoder([32, 32, 32, 32], layers=1, latent_channels=16)
    safetensors.torch.save_file(autoencoder.state_dict(), parent / "ae.safetensors")
    return parent


def word_tokenizer(folder: Path) -> None:
    vocabulary = {
        word: index
        for index, word in enumerate(
            ["<pad>", "<unk>", "</s>", "a", "red", "green", "circle", "square", "left"]
        )
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)


CHANGES: dict[str, str] = {
    "classifier_free_guidance_prob": "model.classifier_free_guidance_prob=1.0",
    "max_t5_encoding_len": "model.encoder.max_t5_encoding_len=4",
    "image_size": "training.dataset.image_size=48",
    "shuffle": "training.dataset.shuffle=false",
    "split": "training.dataset.split=held_out",
    "seed": "debug.seed=1",
}
LENGTHS = {"max_t5_encoding_len": 8, "image_size": 15}


DEFAULT = ("classifier_free_guidance_prob",)


@pytest.mark.parametrize(
    "change",
    [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in CHANGES],
)
def test_another_value_gives_other_losses(change: str, trained: Path, tmp_path: Path) -> None:
    length = LENGTHS.get(change, 10)
    changed = train(
        tmp_path, "run", CHANGES[change], f"training.seq_len={length}", "validation.enable=false"
    )
    assert figures(changed)[1:] != figures(trained)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["t5_encoder", "clip_encoder", "autoencoder_path"])
def test_an_encoder_from_outside_gives_other_losses(
    encoder: str, outside: Path, trained: Path, tmp_path: Path
) -> None:
    file = (
        outside
        / {"t5_encoder": "t5", "clip_encoder": "clip", "autoencoder_path": "ae.safetensors"}[
            encoder
        ]
    )
    assert (
        figures(train(tmp_path, "run", f"model.encoder.{encoder}={file}"))[1:]
        != figures(trained)[1:]
    )


@pytest.mark.slow
def test_all_times_give_another_held_out_loss_and_the_same_training(
    trained: Path, tmp_path: Path
) -> None:
    changed = train(tmp_path, "run", "model.all_timesteps=true")
    assert figures(changed) == figures(trained)
    assert figures(changed, "validation/loss") != figures(trained, "validation/loss")


def test_a_run_that_was_stopped_goes_on_as_if_it_never_had(trained: Path, tmp_path: Path) -> None:
    train(tmp_path, "run", "training.steps=2")
    on = train(tmp_path, "run")
    assert figures(on) == figures(trained)
    assert figures(on, "validation/loss")[-1] == figures(trained, "validation/loss")[-1]


@pytest.mark.slow
def test_passes_of_fewer_samples_train_the_same(trained: Path, tmp_path: Path) -> None:
    parts = train(
        tmp_path,
        "run",
        "training.local_batch_size=2",
        "training.global_batch_size=4",
        "validation.local_batch_size=5",
    )
    assert figures(parts) == pytest.approx(figures(trained), rel=1e-5)
    assert figures(parts, "validation/loss") == pytest.approx(
        figures(trained, "validation/loss"), rel=1e-5
    )


def test_the_first_loss_is_that_of_predicting_nothing(trained: Path) -> None:
    # noise has variance 1, and the latents of the pictures come on top
    assert 1 < figures(trained)[0] < 2


@pytest.mark.slow
def test_it_learns_the_pictures_that_ship(tmp_path: Path) -> None:
    sizes = ("training.local_batch_size=16", "validation.local_batch_size=12")
    run = train(tmp_path, "run", "training.steps=200", "validation.freq=100", *sizes)
    losses = figures(run, "validation/loss")
    assert losses[-1] < 0.6 * losses[0]


def draw(folder: Path, *words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the command, its worker in this process."""

    def in_process(_: Any, **options: Any) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(options["input"]))
        return type("Done", (), {"returncode": worker.main()})

    monkeypatch.setattr(worker_command.subprocess, "run", in_process)
    return command.run([str(folder), "--prompt", "a red circle left", *words])


def test_a_picture_is_drawn_for_each_prompt(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(name: str, *words: str) -> Any:
        assert (
            draw(
                trained,
                "-o",
                str(tmp_path / "new" / name),
                "--steps",
                "3",
                *words,
                monkeypatch=monkeypatch,
            )
            == 0
        )
        return np.asarray(
            Image.open(next((tmp_path / "new").glob(f"{Path(name).stem}*.png")))
        ).astype(int)

    first = drawn("a.png")
    assert first.shape == (32, 32, 3)
    assert (drawn("b.png") == first).all()
    assert (drawn("c.png", "--seed", "1") != first).any()
    assert (drawn("d.png", "--guidance", "4") != first).any()
    assert (drawn("e.png", "--steps", "5") != first).any()
    assert drawn("f.png", "--size", "48").shape == (48, 48, 3)
    drawn("g.png", "--prompt", "a blue square")
    assert {path.name for path in (tmp_path / "new").glob("g*")} == {"g-1.png", "g-2.png"}


def test_pictures_drawn_while_it_trains_are_what_generate_draws_and_change_no_bit(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = "{steps: 3, guidance: 4, seed: 5}"
    drawing = train(
        tmp_path,
        "run",
        f"metrics.samples={{prompts: [a red circle left, a blue square], freq: 2, "
        f"pictures: {pictures}}}",
    )
    for name in ("loss", "grad_norm", "validation/loss"):
        assert figures(drawing, name) == figures(trained, name)
    samples = drawing / "samples"
    assert {path.name for path in samples.iterdir()} == {
        f"step-{step:06}-{number}.png" for step in (2, 4) for number in (1, 2)
    }
    words = ("-o", str(tmp_path / "x.png"), "--steps", "3", "--guidance", "4", "--seed", "5")
    assert draw(drawing, "--prompt", "a blue square", *words, monkeypatch=monkeypatch) == 0
    for number in (1, 2):
        last, generated = (
            np.asarray(Image.open(path))
            for path in (samples / f"step-000004-{number}.png", tmp_path / f"x-{number}.png")
        )
        assert (last == generated).all()
        assert (last != np.asarray(Image.open(samples / f"step-000002-{number}.png"))).any()
    assert not (trained / "samples").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "flux generates images, but --output is not set"),
        (
            ("-o", "x.png", "--size", "40"),
            "image size 40 is not divisible by the token size of 16 pixels",
        ),
        (("-o", "x.png", "--size", "4096"), "65542 tokens, but the model supports at most 4608"),
        (
            ("-o", "x.png", "--temperature", "0"),
            "flux generates images and does not support --temperature",
        ),
    ],
)
def test_what_makes_no_picture_is_a_problem(
    words: tuple[str, ...],
    told: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert draw(trained, *words, monkeypatch=monkeypatch) == 2
    assert told in capsys.readouterr().err


def test_steps_below_one_are_a_problem(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProblemsFound, match="--steps must be 1 or more"):
        draw(trained, "-o", "x.png", "--steps", "0", monkeypatch=monkeypatch)


@pytest.mark.slow
def test_an_export_opens_in_diffusers_and_a_run_begins_with_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint,) = (trained / "checkpoint").glob("step-*")
    job: dict[str, Any] = {
        "do": "export",
        "checkpoint": str(checkpoint),
        "out": str(tmp_path / "hf"),
        "format": "hf",
        "merge": False,
    }
    monkeypatch.setattr(
        sys, "stdin", io.StringIO(json.dumps(job | {"dtype": None, "shard_bytes": 10**9}))
    )
    assert checkpoint_worker.main() == 0
    config = FluxConfig.model_validate(resolve_model_sizes(FluxConfig(flavor="tiny")))
    opened = FluxTransformer2DModel.from_pretrained(tmp_path / "hf")
    expected = to_huggingface_config(config, "float32")
    found = {name: opened.config[name] for name in expected}
    assert found | {"axes_dims_rope": list(found["axes_dims_rope"])} == expected
    (tmp_path / "again").mkdir()
    given = (
        "checkpoint.initial_load_in_hf=true",
        f"model.hf_assets_path={tmp_path / 'hf'}",
        "optimizer.lr=1.0e-9",
        "training.steps=1",
    )
    given += ("lr_scheduler.warmup_steps=0",)
    again = train(tmp_path / "again", "run", *given)
    assert figures(again, "validation/loss")[0] == pytest.approx(
        figures(trained, "validation/loss")[-1], rel=1e-5
    )


def test_a_not_finite_step_is_told_with_its_samples(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    resolved = tmp_path / "run" / "resolved.yaml"
    resolved.parent.mkdir()
    resolved.write_text(
        resolve_recipe(str(tmp_path / "recipe.yaml"), ["optimizer.lr=1.0e30"], environment={}).text
    )
    assert main([str(resolved)]) == 5


def test_data_of_pictures_is_not_shown_as_tokens(trained: Path) -> None:
    with pytest.raises(
        ProblemsFound, match="flux trains on images, but only text can be tokenized and shown"
    ):
        data_worker.show_samples(
            {
                "resolved": (trained / "resolved.yaml").read_text(),
                "section": None,
                "count": 4,
                "row": None,
            }
        )
