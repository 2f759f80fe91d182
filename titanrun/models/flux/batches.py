"""Rows of pictures with captions to what one pass trains on: latents on their way to noise, and what the encoders say of the captions.

Everything that is drawn follows from the keys of the rows, so that every layout of ranks, and a resumed run, draws the same.

Shapes: B samples, I tokens of the picture, T tokens of the text, C numbers of a picture's token, F sinusoids of a time or of a strength of
guidance, E width of T5, V width of CLIP, L channels of a latent, H and W places of a latent picture.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.encoders import PACKED, PIXELS, packed
from titanrun.models.flux.model import guidance_features, places_of, time_features
from titanrun.models.flux.sampling import encoders_of

# times at which held-out pictures are measured: the middles of so many equal parts
HELD_OUT_TIMES = 8


@dataclass(frozen=True, slots=True, eq=False)
class FluxBatch:
    """Samples of one pass. `target` is the velocity [B, I, C] that the model should give; `loss_mask` [B, I] which tokens count.

    `places` [1, I, 2] are row and column of each token of the picture. `guidance` is what a model that has an embedding of it is told.
    """

    latents: Tensor
    target: Tensor
    times: Tensor
    text: Tensor
    pooled: Tensor
    loss_mask: Tensor
    places: Tensor
    guidance: Tensor | None = None

    def through(self, model: nn.Module) -> Tensor:
        """The velocity [B, I, C] that the model gives."""
        velocity_BIC: Tensor = model(
            self.latents, self.times, self.text, self.pooled, self.places[0], self.guidance
        )
        return velocity_BIC

    def to(self, device: torch.device | str) -> "FluxBatch":
        """The same samples on `device`."""
        return self._with(self._tensors(), lambda tensor: tensor.to(device, non_blocking=True))

    def shared(self, own_share: Callable[[Tensor], Tensor]) -> "FluxBatch":
        """The batch of some tokens of each text and of each picture; what is said of a whole sample stays."""
        return self._with(("latents", "target", "text", "loss_mask", "places"), own_share)

    def valid_mask(self) -> Tensor:
        """Which tokens count in the loss, [B, I] bool."""
        return self.loss_mask

    def valid_count(self) -> Tensor:
        """How many tokens count in the loss, one int64."""
        return self.loss_mask.sum()

    def _tensors(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def _with(self, names: Iterable[str], change: Callable[[Tensor], Tensor]) -> "FluxBatch":
        return replace(self, **{name: change(getattr(self, name)) for name in names})


class FluxBatches:
    """Makes batches of a run's rows, with its frozen encoders on the device.

    Args:
        config: the model section.
        device: of the encoders.
        dtype: they compute in.
    """

    def __init__(self, config: FluxConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.guidance = config.guidance_embed
        self.dropout = config.classifier_free_guidance_prob
        self.times_each = HELD_OUT_TIMES if config.all_timesteps else 1
        self.encoders = encoders_of(config, device=device, dtype=dtype)
        self.t5, self.clip, self.coder = self.encoders.t5, self.encoders.clip, self.encoders.coder

    def training(self, rows: NDArray[Any], rows_per_pass: int) -> list[FluxBatch]:
        """The samples of one step, cut into passes: each row at a time that is drawn, some of them without their captions."""
        return [
            self._drawn(rows[start : start + rows_per_pass])
            for start in range(0, len(rows), rows_per_pass)
        ]

    def held_out(self, rows: NDArray[Any], *, counted: int) -> FluxBatch:
        """The samples of a pass that measures: each row at a fixed time, or at all of them. The first `counted` rows count."""
        generators = [Generator().manual_seed(int(key)) for key in rows["key"]]
        clean_BLHW = self._latents(rows, generators).repeat_interleave(self.times_each, dim=0)
        noise_BLHW = self._noise(clean_BLHW[:: self.times_each], generators).repeat_interleave(
            self.times_each, dim=0
        )
        numbers = [
            int(number) * (self.times_each == 1) + turn
            for number in rows["number"]
            for turn in range(self.times_each)
        ]
        times_B = torch.tensor(
            [(number % HELD_OUT_TIMES + 0.5) / HELD_OUT_TIMES for number in numbers]
        )
        captions = [caption for caption in captions_of(rows) for _ in range(self.times_each)]
        batch = self._batch(clean_BLHW, noise_BLHW, times_B, captions, captions)
        batch.loss_mask[counted * self.times_each :] = False
        return batch

    def _drawn(self, rows: NDArray[Any]) -> FluxBatch:
        """Samples at times of their own."""
        generators = [Generator().manual_seed(int(key)) for key in rows["key"]]
        draws_B3 = torch.stack([torch.rand(3, generator=generator) for generator in generators])
        captions = captions_of(rows)
        for_t5, for_clip = (
            [
                "" if draw < self.dropout else caption
                for draw, caption in zip(draws_B3[:, column], captions, strict=True)
            ]
            for column in (1, 2)
        )
        clean_BLHW = self._latents(rows, generators)
        return self._batch(
            clean_BLHW, self._noise(clean_BLHW, generators), draws_B3[:, 0], for_t5, for_clip
        )

    @torch.no_grad()
    def _latents(self, rows: NDArray[Any], generators: Sequence[Generator]) -> Tensor:
        """The latents of the rows' pictures [B, L, H, W], in fp32."""
        pixels_BCHW = torch.from_numpy(np.ascontiguousarray(rows["pixels"])).to(self.device)
        pictures_BCHW = pixels_BCHW.float() / 127.5 - 1
        size = pictures_BCHW.size(-1) // PIXELS
        noise_BLHW = drawn((self.coder.latent_channels, size, size), generators).to(self.device)
        return self.coder.encode(pictures_BCHW.to(self.dtype), noise_BLHW).float()

    def _noise(self, clean_BLHW: Tensor, generators: Sequence[Generator]) -> Tensor:
        return drawn(clean_BLHW.shape[1:], generators).to(self.device)

    def _batch(
        self,
        clean_BLHW: Tensor,
        noise_BLHW: Tensor,
        times_B: Tensor,
        for_t5: list[str],
        for_clip: list[str],
    ) -> FluxBatch:
        """Samples on the straight line from pictures to noise (https://arxiv.org/abs/2209.03003); the target is the way along it."""
        clean_BIC, noise_BIC = packed(clean_BLHW), packed(noise_BLHW)
        place_B11 = times_B.to(self.device)[:, None, None]
        return FluxBatch(
            latents=(1 - place_B11) * clean_BIC + place_B11 * noise_BIC,
            target=noise_BIC - clean_BIC,
            times=time_features(times_B).to(self.device),
            text=self.t5(for_t5).float(),
            pooled=self.clip(for_clip).float(),
            loss_mask=torch.ones(clean_BIC.shape[:2], dtype=torch.bool, device=self.device),
            places=places_of(clean_BLHW.size(2) // PACKED, clean_BLHW.size(3) // PACKED)[None].to(
                self.device
            ),
            guidance=None
            if self.guidance is None
            else guidance_features(self.guidance, len(times_B)).to(self.device),
        )


def batch_maker(config: FluxConfig, *, device: torch.device, dtype: torch.dtype) -> FluxBatches:
    """What the worker asks a family for that does not take tokens."""
    return FluxBatches(config, device=device, dtype=dtype)


def drawn(shape: Sequence[int], generators: Sequence[Generator]) -> Tensor:
    """Normal draws of one tensor of `shape` from each generator."""
    return torch.stack([torch.randn(*shape, generator=generator) for generator in generators])


def captions_of(rows: NDArray[Any]) -> list[str]:
    """The rows' captions, which are UTF-8."""
    return [bytes(caption).decode() for caption in rows["caption"]]
