"""FLUX.1's autoencoder against diffusers' AutoencoderKL, and the stand-in for it."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from torch import Generator

from titanrun.config.problems import ProblemsFound
from titanrun.models.flux.autoencoder import SCALE, SHIFT, FluxAutoencoder, build_autoencoder
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.encoders import (
    TinyAutoencoder,
    build_image_autoencoder,
    patchify_latents,
    unpatchify_latents,
)
from titanrun.models.shared.spec.flavors import resolve_model_sizes

WIDTHS = [32, 64, 64]


@pytest.fixture
def made() -> FluxAutoencoder:
    torch.manual_seed(0)
    model = FluxAutoencoder(WIDTHS, layers=2, latent_channels=4).requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def theirs(model: FluxAutoencoder) -> AutoencoderKL:
    """diffusers' class with the same weights, under names that diffusers itself makes of those of
    the original."""
    settings = {
        "down_block_types": ["DownEncoderBlock2D"] * 3,
        "up_block_types": ["UpDecoderBlock2D"] * 3,
        "block_out_channels": WIDTHS,
        "layers_per_block": 2,
        "latent_channels": 4,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }
    other = AutoencoderKL(**settings)
    other.load_state_dict(convert_ldm_vae_checkpoint(model.state_dict(), settings))
    return other.requires_grad_(False)


def test_latents_and_pictures_are_those_of_diffusers(made: FluxAutoencoder) -> None:
    other = theirs(made)
    generator = Generator().manual_seed(1)
    pictures, noise = (
        torch.rand(2, 3, 24, 16, generator=generator) * 2 - 1,
        torch.randn(2, 4, 6, 4, generator=generator),
    )
    found = other.encode(pictures).latent_dist
    expected = (found.mean + found.std * noise - SHIFT) * SCALE
    assert found.std.std() > 0.001
    torch.testing.assert_close(made.encode(pictures, noise), expected, rtol=1e-5, atol=1e-5)
    latents = torch.randn(2, 4, 6, 4, generator=generator)
    torch.testing.assert_close(
        made.decode(latents), other.decode(latents / SCALE + SHIFT).sample, rtol=1e-5, atol=2e-5
    )


def test_a_file_says_its_own_sizes_and_a_wrong_one_is_a_problem(
    made: FluxAutoencoder, tmp_path: Path
) -> None:
    file = tmp_path / "ae.safetensors"
    safetensors.torch.save_file(made.state_dict(), file)

    def coder(**changes: int) -> object:
        encoder = {
            "t5_encoder": "tiny",
            "clip_encoder": "tiny",
            "autoencoder_path": str(file),
            "max_t5_encoding_len": 4,
        }
        config = FluxConfig.model_validate({"flavor": "tiny", "encoder": encoder, **changes})
        return build_image_autoencoder(
            FluxConfig.model_validate(resolve_model_sizes(config)),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )

    opened = coder(in_channels=16)
    assert isinstance(opened, FluxAutoencoder)
    assert all(
        torch.equal(tensor, made.state_dict()[name]) for name, tensor in opened.state_dict().items()
    )
    with pytest.raises(ProblemsFound, match="the autoencoder has 4 channels"):
        coder()
    safetensors.torch.save_file(
        {name: tensor for name, tensor in made.state_dict().items() if "mid" not in name}, file
    )
    with pytest.raises(ProblemsFound, match=r"decoder\.mid\.attn_1"):
        coder(in_channels=16)
    file.write_bytes(b"no weights")
    with pytest.raises(ProblemsFound, match="cannot read"):
        coder(in_channels=16)


def test_the_autoencoder_of_flux_has_its_published_size() -> None:
    with torch.device("meta"):
        model = FluxAutoencoder([128, 256, 512, 512], layers=2, latent_channels=16)
        other = AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=[128, 256, 512, 512],
            layers_per_block=2,
            latent_channels=16,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
    assert (
        sum(weight.numel() for weight in model.parameters())
        == sum(weight.numel() for weight in other.parameters())
        == 83_819_683
    )


def test_weights_of_something_else_are_a_problem() -> None:
    with pytest.raises(ProblemsFound, match="does not contain FLUX"):
        build_autoencoder({"weight": torch.zeros(2)}, source="x.safetensors")


def test_the_stand_in_keeps_low_frequencies() -> None:
    coder = TinyAutoencoder(16)
    flat = torch.zeros(1, 3, 16, 24)
    flat[:, 0, :, :8], flat[:, 2, 8:] = 0.5, -1.0
    latents = coder.encode(flat, torch.zeros(1, 16, 2, 3))
    assert latents.shape == (1, 16, 2, 3)
    torch.testing.assert_close(coder.decode(latents), flat)
    noise = torch.rand(1, 3, 16, 24, generator=Generator().manual_seed(0))
    kept = coder.decode(coder.encode(noise, torch.zeros(1)))
    torch.testing.assert_close(coder.decode(coder.encode(kept, torch.zeros(1))), kept)


def test_packing_is_that_of_diffusers_and_comes_back() -> None:
    latents = torch.randn(2, 4, 6, 8, generator=Generator().manual_seed(0))
    # FluxPipeline._pack_latents, which cannot be imported without a pipeline's other packages
    expected = latents.view(2, 4, 3, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(2, 12, 16)
    assert torch.equal(patchify_latents(latents), expected)
    assert torch.equal(unpatchify_latents(patchify_latents(latents), (3, 4)), latents)
