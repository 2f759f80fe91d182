"""Image generation from noise: Euler steps along the velocity of a flux model.

Shapes: B images, I tokens of an image, C channels of a token.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.encoders import (
    PATCH_SIZE,
    PIXELS_PER_LATENT,
    ImageAutoencoder,
    TextEncoder,
    build_image_autoencoder,
    build_text_encoders,
    unpatchify_latents,
)
from titanrun.models.flux.model import (
    compute_guidance_features,
    compute_timestep_features,
    get_image_positions,
)
from titanrun.models.shared.config import unwrap_auto

# image tokens and the shift of the times towards noise, interpolated linearly
FEW, MANY = (256, 0.5), (4096, 1.15)


@dataclass(frozen=True, slots=True)
class ImageSampling:
    """Options of image generation.

    `size`: pixels per side. `guidance`: scale of the step beyond the one without a caption, or the
    guidance input of a model with an embedding for it. None: the step uses the caption alone, or
    the guidance strength of training.
    """

    steps: int
    size: int
    seed: int
    guidance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxEncoders:
    """Frozen networks around a model, which compute in `dtype`."""

    t5: TextEncoder
    clip: TextEncoder
    autoencoder: ImageAutoencoder
    dtype: torch.dtype


def build_encoders(config: FluxConfig, *, device: torch.device, dtype: torch.dtype) -> FluxEncoders:
    """Build the encoders that the recipe names."""
    t5, clip = build_text_encoders(config, device=device, dtype=dtype)
    return FluxEncoders(
        t5=t5,
        clip=clip,
        autoencoder=build_image_autoencoder(config, device=device, dtype=dtype),
        dtype=dtype,
    )


def sample_images(
    model: nn.Module,
    config: FluxConfig,
    prompts: Sequence[str],
    sampling: ImageSampling,
    *,
    device: torch.device,
) -> Tensor:
    """Generate images [B, 3, size, size] of uint8 on a single process."""
    dtype = next(model.parameters()).dtype
    return sample_images_with(
        model,
        config,
        prompts,
        sampling,
        encoders=build_encoders(config, device=device, dtype=dtype),
        device=device,
        dtype=dtype,
    )


@torch.no_grad()
def sample_images_with(
    model: nn.Module,
    config: FluxConfig,
    prompts: Sequence[str],
    sampling: ImageSampling,
    *,
    encoders: FluxEncoders,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Generate images [B, 3, size, size] of uint8 with given encoders.

    The i-th image starts from noise of seed + i, independently of the others. `dtype` is the dtype
    of the model's inputs.
    """
    side = sampling.size // (PIXELS_PER_LATENT * PATCH_SIZE)
    shape = (side * side, unwrap_auto(config.in_channels))
    noise = [
        torch.randn(*shape, generator=Generator().manual_seed(sampling.seed + index))
        for index in range(len(prompts))
    ]
    conditions = [
        (encoders.t5(texts).to(dtype), encoders.clip(texts).to(dtype))
        for texts in ([*prompts], [""] * len(prompts))
    ]

    places_I2 = get_image_positions(side, side).to(device)
    strength = config.guidance_embed if sampling.guidance is None else sampling.guidance
    guidance_BF = None
    if strength is not None and config.guidance_embed is not None:
        guidance_BF = compute_guidance_features(strength, len(prompts)).to(device, dtype)

    def velocity(latents_BIC: Tensor, time: float) -> Tensor:
        times_BF = compute_timestep_features(torch.full((len(prompts),), time)).to(device, dtype)
        given = conditions[:1] if strength is None or guidance_BF is not None else conditions
        found = [
            model(latents_BIC.to(dtype), times_BF, text, pooled, places_I2, guidance_BF).float()
            for text, pooled in given
        ]
        return (
            found[0]
            if strength is None or guidance_BF is not None
            else apply_guidance(*found, scale=strength)
        )

    latents_BIC = torch.stack(noise).to(device)
    times = compute_timesteps(sampling.steps, num_tokens=side * side)
    for time, following in itertools.pairwise(times):
        latents_BIC = latents_BIC + (following - time) * velocity(latents_BIC, time)
    return decode_images(latents_BIC, (side, side), encoders)


def decode_images(latents_BIC: Tensor, grid: tuple[int, int], encoders: FluxEncoders) -> Tensor:
    """Decode latent tokens of a grid to images of uint8."""
    decoded = encoders.autoencoder.decode(unpatchify_latents(latents_BIC, grid).to(encoders.dtype))
    return ((decoded.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def apply_guidance(with_caption: Tensor, without: Tensor, *, scale: float) -> Tensor:
    """Extrapolate from the velocity without a caption to the one with it, by `scale`.

    The method is described in https://arxiv.org/abs/2207.12598.
    """
    return without + scale * (with_caption - without)


def compute_timesteps(steps: int, *, num_tokens: int) -> list[float]:
    """Return times from 1 (noise) to 0.

    The more tokens an image has, the longer the times stay near 1.
    """
    slope = (MANY[1] - FEW[1]) / (MANY[0] - FEW[0])
    shift = math.exp(FEW[1] + slope * (num_tokens - FEW[0]))
    even = [1 - step / steps for step in range(steps + 1)]
    return [shift * time / (1 + (shift - 1) * time) for time in even]
