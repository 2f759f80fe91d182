"""Pictures from noise: Euler steps along the velocity that a flux model gives.

Shapes: B pictures, I tokens of a picture, C numbers of a token.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.encoders import (
    PACKED,
    PIXELS,
    PictureCoder,
    TextEncoder,
    picture_coder,
    text_encoders,
    unpacked,
)
from titanrun.models.flux.model import guidance_features, places_of, time_features
from titanrun.models.shared.config import decided

# tokens of a picture, and how far its times are shifted towards noise; between them along a line
FEW, MANY = (256, 0.5), (4096, 1.15)


@dataclass(frozen=True, slots=True)
class PictureSampling:
    """How pictures are drawn. `size`: pixels of a side; `guidance`: how far each step goes beyond the one without a caption, or what a
    model with an embedding of it is told; None: the step is taken with the caption alone, or told what training told."""

    steps: int
    size: int
    seed: int
    guidance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """The frozen networks around a model, which compute in `dtype`."""

    t5: TextEncoder
    clip: TextEncoder
    coder: PictureCoder
    dtype: torch.dtype


def encoders_of(config: FluxConfig, *, device: torch.device, dtype: torch.dtype) -> Encoders:
    """Those that the recipe names."""
    t5, clip = text_encoders(config, device=device, dtype=dtype)
    return Encoders(
        t5=t5, clip=clip, coder=picture_coder(config, device=device, dtype=dtype), dtype=dtype
    )


def pictures(
    model: nn.Module,
    config: FluxConfig,
    prompts: Sequence[str],
    how: PictureSampling,
    *,
    device: torch.device,
) -> Tensor:
    """Pictures [B, 3, size, size] of uint8, by a model that stands alone."""
    dtype = next(model.parameters()).dtype
    return drawn_pictures(
        model,
        config,
        prompts,
        how,
        encoders=encoders_of(config, device=device, dtype=dtype),
        device=device,
        dtype=dtype,
    )


@torch.no_grad()
def drawn_pictures(
    model: nn.Module,
    config: FluxConfig,
    prompts: Sequence[str],
    how: PictureSampling,
    *,
    encoders: Encoders,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Pictures [B, 3, size, size] of uint8. The i-th is drawn from noise of seed + i, whatever the others are.

    `dtype` is what the model is given.
    """
    side = how.size // (PIXELS * PACKED)
    shape = (side * side, decided(config.in_channels))
    noise = [
        torch.randn(*shape, generator=Generator().manual_seed(how.seed + index))
        for index in range(len(prompts))
    ]
    conditions = [
        (encoders.t5(texts).to(dtype), encoders.clip(texts).to(dtype))
        for texts in ([*prompts], [""] * len(prompts))
    ]

    places_I2 = places_of(side, side).to(device)
    strength = config.guidance_embed if how.guidance is None else how.guidance
    told = None
    if strength is not None and config.guidance_embed is not None:
        told = guidance_features(strength, len(prompts)).to(device, dtype)

    def velocity(latents_BIC: Tensor, time: float) -> Tensor:
        times_BF = time_features(torch.full((len(prompts),), time)).to(device, dtype)
        given = conditions[:1] if strength is None or told is not None else conditions
        found = [
            model(latents_BIC.to(dtype), times_BF, text, pooled, places_I2, told).float()
            for text, pooled in given
        ]
        return found[0] if strength is None or told is not None else guided(*found, scale=strength)

    latents_BIC = torch.stack(noise).to(device)
    times = schedule(how.steps, tokens=side * side)
    for time, following in itertools.pairwise(times):
        latents_BIC = latents_BIC + (following - time) * velocity(latents_BIC, time)
    decoded = encoders.coder.decode(unpacked(latents_BIC, (side, side)).to(encoders.dtype))
    return ((decoded.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def guided(with_caption: Tensor, without: Tensor, *, scale: float) -> Tensor:
    """The velocity without a caption, and `scale` times the way to the one with it (https://arxiv.org/abs/2207.12598)."""
    return without + scale * (with_caption - without)


def schedule(steps: int, *, tokens: int) -> list[float]:
    """Times from 1, which is noise, to 0; the more tokens a picture has, the longer its times stay near noise."""
    slope = (MANY[1] - FEW[1]) / (MANY[0] - FEW[0])
    shift = math.exp(FEW[1] + slope * (tokens - FEW[0]))
    even = [1 - step / steps for step in range(steps + 1)]
    return [shift * time / (1 + (shift - 1) * time) for time in even]
