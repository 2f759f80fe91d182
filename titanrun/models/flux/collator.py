"""Collator of images with captions: noisy latents, and text features of the encoders.

All random draws follow from the keys of the samples, so that every layout of ranks, and a resumed
run, draws the same.

Shapes: B samples, I tokens of the image, T tokens of the text, C channels of an image token, F
sinusoids of a time or of a guidance strength, E width of T5, V width of CLIP, L channels of a
latent, H and W height and width of a latent image.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.encoders import PATCH_SIZE, PIXELS_PER_LATENT, patchify_latents
from titanrun.models.flux.image_sampling import build_encoders
from titanrun.models.flux.model import (
    compute_guidance_features,
    compute_timestep_features,
    get_image_positions,
)

# number of validation times: the middles of as many equal intervals
HELD_OUT_TIMES = 8


@dataclass(frozen=True, slots=True, eq=False)
class FluxBatch:
    """Samples of one forward pass.

    `target` is the velocity [B, I, C] that the model should predict, and `loss_mask` [B, I] selects
    the tokens that count. `places` [1, I, 2] are row and column of each image token. `guidance` is
    the input of a model with a guidance embedding.
    """

    latents: Tensor
    target: Tensor
    times: Tensor
    text: Tensor
    pooled: Tensor
    loss_mask: Tensor
    places: Tensor
    guidance: Tensor | None = None

    def forward_model(self, model: nn.Module) -> Tensor:
        """Return the model's velocity [B, I, C]."""
        velocity_BIC: Tensor = model(
            self.latents, self.times, self.text, self.pooled, self.places[0], self.guidance
        )
        return velocity_BIC

    def to(self, device: torch.device | str) -> "FluxBatch":
        """Return the same samples on `device`."""
        return self._replace_tensors(
            self._tensor_names(), lambda tensor: tensor.to(device, non_blocking=True)
        )

    def slice_sequence(self, slice_tensor: Callable[[Tensor], Tensor]) -> "FluxBatch":
        """Return the batch with some tokens of each text and image only.

        Tensors of whole samples stay.
        """
        return self._replace_tensors(
            ("latents", "target", "text", "loss_mask", "places"), slice_tensor
        )

    def label_mask(self) -> Tensor:
        """Return which tokens count in the loss, [B, I] bool."""
        return self.loss_mask

    def num_valid_tokens(self) -> Tensor:
        """Return the number of tokens that count in the loss, one int64."""
        return self.loss_mask.sum()

    def _tensor_names(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def _replace_tensors(
        self, names: Iterable[str], transform: Callable[[Tensor], Tensor]
    ) -> "FluxBatch":
        return replace(self, **{name: transform(getattr(self, name)) for name in names})


class FluxCollator:
    """Collator of a run's samples, with its frozen encoders on the device.

    Args:
        config: the model section.
        device: device of the encoders.
        dtype: dtype in which the encoders compute.
    """

    def __init__(self, config: FluxConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.guidance = config.guidance_embed
        self.dropout = config.classifier_free_guidance_prob
        self.times_per_image = HELD_OUT_TIMES if config.all_timesteps else 1
        self.encoders = build_encoders(config, device=device, dtype=dtype)
        self.t5, self.clip, self.autoencoder = (
            self.encoders.t5,
            self.encoders.clip,
            self.encoders.autoencoder,
        )

    def collate_train(self, samples: NDArray[Any], local_batch_size: int) -> list[FluxBatch]:
        """Split the samples of one step into batches.

        Each sample has a random time, and some lack their captions.
        """
        return [
            self._build_train_batch(samples[start : start + local_batch_size])
            for start in range(0, len(samples), local_batch_size)
        ]

    def collate_validation(self, samples: NDArray[Any], *, num_counted: int) -> FluxBatch:
        """Build a validation batch: each sample at a fixed time, or at all of them.

        The first `num_counted` samples count in the loss.
        """
        generators = [Generator().manual_seed(int(key)) for key in samples["key"]]
        clean_BLHW = self._encode_images(samples, generators).repeat_interleave(
            self.times_per_image, dim=0
        )
        noise_BLHW = self._draw_noise(
            clean_BLHW[:: self.times_per_image], generators
        ).repeat_interleave(self.times_per_image, dim=0)
        numbers = [
            int(number) * (self.times_per_image == 1) + turn
            for number in samples["number"]
            for turn in range(self.times_per_image)
        ]
        times_B = torch.tensor(
            [(number % HELD_OUT_TIMES + 0.5) / HELD_OUT_TIMES for number in numbers]
        )
        captions = [
            caption for caption in decode_captions(samples) for _ in range(self.times_per_image)
        ]
        batch = self._build_batch(clean_BLHW, noise_BLHW, times_B, captions, captions)
        batch.loss_mask[num_counted * self.times_per_image :] = False
        return batch

    def _build_train_batch(self, samples: NDArray[Any]) -> FluxBatch:
        """Build a batch with a random time per sample."""
        generators = [Generator().manual_seed(int(key)) for key in samples["key"]]
        draws_B3 = torch.stack([torch.rand(3, generator=generator) for generator in generators])
        captions = decode_captions(samples)
        for_t5, for_clip = (
            [
                "" if draw < self.dropout else caption
                for draw, caption in zip(draws_B3[:, column], captions, strict=True)
            ]
            for column in (1, 2)
        )
        clean_BLHW = self._encode_images(samples, generators)
        return self._build_batch(
            clean_BLHW, self._draw_noise(clean_BLHW, generators), draws_B3[:, 0], for_t5, for_clip
        )

    @torch.no_grad()
    def _encode_images(self, samples: NDArray[Any], generators: Sequence[Generator]) -> Tensor:
        """Return the latents [B, L, H, W] of the samples' images, in fp32."""
        pixels_BCHW = torch.from_numpy(np.ascontiguousarray(samples["pixels"])).to(self.device)
        images_BCHW = pixels_BCHW.float() / 127.5 - 1
        size = images_BCHW.size(-1) // PIXELS_PER_LATENT
        noise_BLHW = draw_normal((self.autoencoder.latent_channels, size, size), generators).to(
            self.device
        )
        return self.autoencoder.encode(images_BCHW.to(self.dtype), noise_BLHW).float()

    def _draw_noise(self, clean_BLHW: Tensor, generators: Sequence[Generator]) -> Tensor:
        return draw_normal(clean_BLHW.shape[1:], generators).to(self.device)

    def _build_batch(
        self,
        clean_BLHW: Tensor,
        noise_BLHW: Tensor,
        times_B: Tensor,
        for_t5: list[str],
        for_clip: list[str],
    ) -> FluxBatch:
        """Build samples on the straight lines from images to noise.

        The method is described in https://arxiv.org/abs/2209.03003. The target is the direction of
        the line.
        """
        clean_BIC, noise_BIC = patchify_latents(clean_BLHW), patchify_latents(noise_BLHW)
        place_B11 = times_B.to(self.device)[:, None, None]
        return FluxBatch(
            latents=(1 - place_B11) * clean_BIC + place_B11 * noise_BIC,
            target=noise_BIC - clean_BIC,
            times=compute_timestep_features(times_B).to(self.device),
            text=self.t5(for_t5).float(),
            pooled=self.clip(for_clip).float(),
            loss_mask=torch.ones(clean_BIC.shape[:2], dtype=torch.bool, device=self.device),
            places=get_image_positions(
                clean_BLHW.size(2) // PATCH_SIZE, clean_BLHW.size(3) // PATCH_SIZE
            )[None].to(self.device),
            guidance=None
            if self.guidance is None
            else compute_guidance_features(self.guidance, len(times_B)).to(self.device),
        )


def build_family_collator(
    config: FluxConfig, *, device: torch.device, dtype: torch.dtype
) -> FluxCollator:
    """Build the collator of a family that does not take tokens, called by the worker."""
    return FluxCollator(config, device=device, dtype=dtype)


def draw_normal(shape: Sequence[int], generators: Sequence[Generator]) -> Tensor:
    """Draw a normal tensor of `shape` from each generator and stack them."""
    return torch.stack([torch.randn(*shape, generator=generator) for generator in generators])


def decode_captions(samples: NDArray[Any]) -> list[str]:
    """Return the samples' captions, which are UTF-8."""
    return [bytes(caption).decode() for caption in samples["caption"]]
