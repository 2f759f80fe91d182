"""Batches of pictures: what is drawn follows from the rows' keys, encoders say what transformers
says, sampling follows its schedule."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from titanrun.components.data.config import TinyImagesConfig
from titanrun.components.data.image_dataset import build_tiny_image_dataset
from titanrun.components.data.indexed_dataset import SampleRequest
from titanrun.components.losses.config import FlowMatchingConfig
from titanrun.config.problems import ProblemsFound
from titanrun.models.flux.collator import FluxCollator
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.encoders import build_text_encoders
from titanrun.models.flux.image_sampling import ImageSampling, compute_timesteps, sample_images
from titanrun.models.flux.model import Flux, compute_timestep_features
from titanrun.models.shared.spec.flavors import resolve_model_sizes

CPU = torch.device("cpu")


def config_of(**changes: Any) -> FluxConfig:
    return FluxConfig.model_validate(
        resolve_model_sizes(FluxConfig.model_validate({"flavor": "tiny", **changes}))
    )


def batches(**changes: Any) -> FluxCollator:
    return FluxCollator(config_of(**changes), device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def rows() -> NDArray[Any]:
    found = build_tiny_image_dataset(
        TinyImagesConfig(image_size=32), tokenizer=None, sample_length=21, cache_folder=Path()
    )
    return np.stack([found[SampleRequest(index, 1000 + index)] for index in range(6)])


def test_a_sample_is_the_same_in_whatever_batch(rows: NDArray[Any]) -> None:
    maker = batches(classifier_free_guidance_prob=0.5)
    together, apart = maker.collate_train(rows, 6), maker.collate_train(rows, 2)
    assert len(apart) == 3
    for name in ("latents", "target", "times", "text", "pooled", "loss_mask"):
        assert torch.equal(
            getattr(together[0], name), torch.cat([getattr(part, name) for part in apart])
        ), name
    again = rows.copy()
    again["key"] += 1
    assert not torch.equal(maker.collate_train(again, 6)[0].target, together[0].target)


def test_latents_are_on_the_line_from_picture_to_noise(rows: NDArray[Any]) -> None:
    maker = batches()
    (batch,) = maker.collate_train(rows, 6)
    pixels = torch.from_numpy(rows["pixels"]).float() / 127.5 - 1
    clean = (
        maker.autoencoder.encode(pixels, torch.zeros(1))
        .unfold(2, 2, 2)
        .unfold(3, 2, 2)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(6, 4, 64)
    )
    noise = clean + batch.target
    assert float(noise.mean()) == pytest.approx(0, abs=0.1)
    assert float(noise.std()) == pytest.approx(1, abs=0.1)
    times = ((batch.latents - clean) * batch.target).sum((1, 2)) / batch.target.square().sum((1, 2))
    assert times.min() > 0
    assert times.max() < 1
    assert times.std() > 0.1
    torch.testing.assert_close(batch.times, compute_timestep_features(times), rtol=1e-3, atol=1e-3)


def test_the_loss_is_the_mean_squared_error_of_the_velocity(rows: NDArray[Any]) -> None:
    batch = batches().collate_validation(rows, num_counted=4)
    loss = FlowMatchingConfig().load_builder()(FlowMatchingConfig())
    velocity = torch.randn(batch.target.shape, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.mse_loss(velocity[:4].double(), batch.target[:4].double())
    assert float(loss(velocity, batch) / batch.num_valid_tokens()) == pytest.approx(
        float(expected), rel=1e-6
    )


@pytest.mark.parametrize(("dropped", "share"), [(0.0, 0), (1.0, 1)])
def test_captions_are_dropped_as_often_as_asked(
    dropped: float, share: int, rows: NDArray[Any]
) -> None:
    (batch,) = batches(classifier_free_guidance_prob=dropped).collate_train(rows, 6)
    assert float((batch.text == 0).all(-1).all(-1).float().mean()) == share
    assert float((batch.pooled == 0).all(-1).float().mean()) == share


@pytest.mark.slow
def test_the_two_captions_are_dropped_independently() -> None:
    found = build_tiny_image_dataset(
        TinyImagesConfig(image_size=16), tokenizer=None, sample_length=21, cache_folder=Path()
    )
    many = np.stack([found[SampleRequest(index % 4, index)] for index in range(400)])
    (batch,) = batches(classifier_free_guidance_prob=0.4).collate_train(many, 400)
    t5, clip = (batch.text == 0).all(-1).all(-1).float(), (batch.pooled == 0).all(-1).float()
    assert [float(t5.mean()), float(clip.mean())] == pytest.approx([0.4, 0.4], abs=0.08)
    assert float((t5 * clip).mean()) == pytest.approx(0.16, abs=0.05)


def test_held_out_pictures_are_measured_at_fixed_times(rows: NDArray[Any]) -> None:
    eighths = (torch.arange(8) + 0.5) / 8
    (one, every) = (
        batches(all_timesteps=each, classifier_free_guidance_prob=1.0).collate_validation(
            rows, num_counted=5
        )
        for each in (False, True)
    )
    assert torch.equal(
        one.times, compute_timestep_features(eighths[torch.from_numpy(rows["number"]) % 8])
    )
    assert torch.equal(every.times, compute_timestep_features(eighths.repeat(6)))
    assert one.loss_mask.any(1).tolist() == [True] * 5 + [False]
    assert every.loss_mask.any(1).tolist() == [True] * 40 + [False] * 8
    # no caption is dropped, and a picture has one noise at all times
    assert not (one.text == 0).all(-1).all(-1).any()
    assert torch.equal(every.target[0], every.target[7])
    assert torch.equal(one.target[3], every.target[24])


def word_tokenizer(folder: Path) -> None:
    vocabulary = {
        word: index
        for index, word in enumerate(
            ["<pad>", "<unk>", "</s>", "<s>", "a", "red", "blue", "circle", "square", "left"]
        )
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(0)
    t5, clip = tmp_path_factory.mktemp("t5"), tmp_path_factory.mktemp("clip")
    T5EncoderModel(
        T5Config(vocab_size=10, d_model=64, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
    ).save_pretrained(t5)
    CLIPTextModel(
        CLIPTextConfig(
            vocab_size=10,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            eos_token_id=2,
        )
    ).save_pretrained(clip)
    word_tokenizer(t5)
    word_tokenizer(clip)
    return t5, clip


def test_encoders_say_what_transformers_says(folders: tuple[Path, Path]) -> None:
    t5, clip = folders
    config = config_of(
        encoder={"t5_encoder": str(t5), "clip_encoder": str(clip), "max_t5_encoding_len": 6}
    )
    tokens, whole = (
        encode(["a red circle left", ""])
        for encode in build_text_encoders(config, device=CPU, dtype=torch.float32)
    )
    ids = torch.tensor([[4, 5, 7, 9, 2, 0], [2, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        expected = T5EncoderModel.from_pretrained(t5).eval()(input_ids=ids).last_hidden_state
        padded = torch.cat([ids, torch.zeros(2, 71, dtype=torch.int64)], dim=1)
        pooled = CLIPTextModel.from_pretrained(clip).eval()(input_ids=padded).pooler_output
    torch.testing.assert_close(tokens, expected)
    torch.testing.assert_close(whole, pooled)
    assert tokens.shape == (2, 6, 64)


def test_an_encoder_that_does_not_fit_is_a_problem(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    t5, _ = folders

    def problem(**changes: Any) -> str:
        with pytest.raises(ProblemsFound) as found:
            build_text_encoders(config_of(**changes), device=CPU, dtype=torch.float32)
        return found.value.problems[0].message

    encoder = {"t5_encoder": str(t5), "clip_encoder": "tiny", "max_t5_encoding_len": 6}
    assert "64 wide, but model.context_in_dim is 32" in problem(encoder=encoder, context_in_dim=32)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    assert "cannot read a T5EncoderModel" in problem(
        encoder=encoder | {"t5_encoder": str(tmp_path)}
    )


def test_the_schedule_is_shifted_by_the_size_of_the_picture() -> None:
    assert compute_timesteps(4, num_tokens=256)[0] == 1
    assert compute_timesteps(4, num_tokens=256)[-1] == 0
    # e^0.5 / (e^0.5 + 1), and e^1.15 / (e^1.15 + 1)
    assert compute_timesteps(4, num_tokens=256)[2] == pytest.approx(0.6224593312)
    assert compute_timesteps(2, num_tokens=4096)[1] == pytest.approx(0.7595109000)


class Straight(torch.nn.Module):
    """The velocity from one picture to whatever noise: all that sampling needs to arrive at it."""

    def __init__(self, goal: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.goal, self.time_of = goal, {}

    def forward(
        self,
        latents: torch.Tensor,
        times: torch.Tensor,
        text: torch.Tensor,
        *others: torch.Tensor | None,
    ) -> torch.Tensor:
        time = (times[0, 191 - 64].clamp(-1, 1)).acos() / (1000 * 10000 ** (-127 / 128))
        goal = self.goal * (1 if bool(text.any()) else 0)
        return (latents - goal) / time


@pytest.mark.parametrize(("guidance", "factor"), [(None, 1.0), (0.5, 0.5)])
def test_sampling_arrives_where_the_velocity_leads(guidance: float | None, factor: float) -> None:
    goal = torch.zeros(1, 4, 64)
    goal[..., 0:4] = 0.8
    how = ImageSampling(steps=3, size=32, seed=5, guidance=guidance)
    found = sample_images(Straight(goal), config_of(), ["a red circle"], how, device=CPU)
    assert found.shape == (1, 3, 32, 32)
    red = float(found[0, 0].float().mean())
    assert red == pytest.approx(127.5 * (1 + 0.8 * factor), abs=1)
    assert float(found[0, 1].float().mean()) == pytest.approx(127.5, abs=1)


def test_a_model_with_the_embedding_is_told_the_strength_of_guidance(rows: NDArray[Any]) -> None:
    config = config_of(guidance_embed=2.0)
    told = FluxCollator(config, device=CPU, dtype=torch.float32)
    for batch in (*told.collate_train(rows, 6), told.collate_validation(rows, num_counted=6)):
        assert torch.equal(batch.guidance, compute_timestep_features(torch.full((6,), 2.0)))
    model = Flux(config, seq_len=32).requires_grad_(False)
    for number, weight in enumerate(model.parameters()):
        weight.normal_(0, 0.05, generator=torch.Generator().manual_seed(number))
    with_default, same, other = (
        sample_images(
            model,
            config,
            ["a red circle"],
            ImageSampling(steps=2, size=32, seed=5, guidance=strength),
            device=CPU,
        )
        for strength in (None, 2.0, 4.0)
    )
    assert torch.equal(with_default, same)
    assert not torch.equal(with_default, other)


def test_a_share_of_a_batch_has_tokens_of_the_text_and_of_the_picture_with_their_places(
    rows: NDArray[Any],
) -> None:
    (whole,) = batches(guidance_embed=2.0).collate_train(rows, 6)
    share = whole.slice_sequence(lambda tensor: tensor[:, 1::2])
    assert torch.equal(share.latents, whole.latents[:, 1::2])
    assert torch.equal(share.target, whole.target[:, 1::2])
    assert torch.equal(share.text, whole.text[:, 1::2])
    assert share.places.tolist() == [[[0, 1], [1, 1]]]
    assert int(share.num_valid_tokens()) * 2 == int(whole.num_valid_tokens())
    for name in ("times", "pooled", "guidance"):
        assert torch.equal(getattr(share, name), getattr(whole, name))


def test_a_picture_depends_on_its_own_seed_only() -> None:
    config = config_of()
    model = Flux(config, seq_len=32)
    model.init_weights(torch.Generator().manual_seed(0))
    torch.nn.init.normal_(
        model.output.linear.weight, std=0.1, generator=torch.Generator().manual_seed(0)
    )
    both = sample_images(
        model, config, ["a", "b"], ImageSampling(steps=2, size=32, seed=5), device=CPU
    )
    alone = sample_images(model, config, ["b"], ImageSampling(steps=2, size=32, seed=6), device=CPU)
    first, second = ((image.int() - alone[0].int()).abs().max() for image in both)
    assert second <= 1  # matmuls of other shapes round differently
    assert first > 50
