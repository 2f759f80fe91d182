"""Encoders of images and captions: FLUX.1's frozen networks, or tiny stand-ins.

Shapes: B samples, T tokens of text, E width of T5, V width of CLIP, H and W height and width of a
latent image, L channels of a latent.
"""

import math
import zlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Generator, Tensor

from titanrun.config.problems import DataPath, problem_error
from titanrun.models.flux.autoencoder import build_autoencoder
from titanrun.models.flux.config import TINY, FluxConfig
from titanrun.models.shared.config import unwrap_auto

CLIP_TOKENS = 77
# pixels per side of one position of a latent image
PIXELS_PER_LATENT = 8
PATCH_SIZE = 2
# class of transformers, its output that is used, and the config field of its width
TEXT_ENCODERS = {
    "t5": ("T5EncoderModel", "last_hidden_state", "context_in_dim"),
    "clip": ("CLIPTextModel", "pooler_output", "vec_in_dim"),
}


class TextEncoder(Protocol):
    """Encoder from captions to features of each token, or of the whole caption."""

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """Return the features of the captions."""


class ImageAutoencoder(Protocol):
    """Autoencoder from images in [-1, 1] to latents, and back."""

    latent_channels: int

    def encode(self, images_BCHW: Tensor, noise_BLHW: Tensor) -> Tensor:
        """Return normalized latents [B, L, H, W], drawn with the given noise."""

    def decode(self, latents_BLHW: Tensor) -> Tensor:
        """Return images from normalized latents."""


class TinyTextEncoder:
    """Random features of words: the same word always has the same features."""

    def __init__(self, width: int, *, length: int, device: torch.device) -> None:
        self.width, self.length, self.device = width, length, device

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """Return features [B, T, width], zero behind the end of a caption."""
        features_BTE = torch.zeros(len(captions), self.length, self.width)
        for features_TE, caption in zip(features_BTE, captions, strict=True):
            for place, word in enumerate(caption.lower().split()[: self.length]):
                features_TE[place] = torch.randn(
                    self.width, generator=Generator().manual_seed(zlib.crc32(word.encode()))
                )
        return features_BTE.to(self.device)


class TinyPooledTextEncoder(TinyTextEncoder):
    """Mean of the words' random features."""

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """Return features [B, width]."""
        # of the same magnitude as the features of one word
        return super().__call__(captions).sum(dim=1) / math.sqrt(self.length)


class TinyAutoencoder:
    """Lowest frequencies of each 8 x 8 pixels, by the discrete cosine transform of each color."""

    def __init__(self, latent_channels: int) -> None:
        self.latent_channels = latent_channels

    def encode(self, images_BCHW: Tensor, noise_BLHW: Tensor) -> Tensor:
        """Return latents [B, L, H, W] without using the noise."""
        basis = self.build_basis(images_BCHW.device)
        patches = images_BCHW.unfold(2, PIXELS_PER_LATENT, PIXELS_PER_LATENT).unfold(
            3, PIXELS_PER_LATENT, PIXELS_PER_LATENT
        )
        return torch.einsum("bchwij,lcij->blhw", patches.float(), basis)

    def decode(self, latents_BLHW: Tensor) -> Tensor:
        """Return the images that have these frequencies only."""
        basis = self.build_basis(latents_BLHW.device) * PIXELS_PER_LATENT**2
        patches = torch.einsum("blhw,lcij->bchiwj", latents_BLHW.float(), basis)
        return patches.flatten(4, 5).flatten(2, 3)

    def build_basis(self, device: torch.device) -> Tensor:
        """Return waves [L, 3, 8, 8] with a mean square of 1 over their color, divided by 64."""
        places = (
            (torch.arange(PIXELS_PER_LATENT, dtype=torch.float32) + 0.5)
            * math.pi
            / PIXELS_PER_LATENT
        )
        pairs = sorted(
            ((u, v) for u in range(PIXELS_PER_LATENT) for v in range(PIXELS_PER_LATENT)),
            key=lambda pair: (sum(pair), pair),
        )
        basis = torch.zeros(self.latent_channels, 3, PIXELS_PER_LATENT, PIXELS_PER_LATENT)
        for channel in range(self.latent_channels):
            u, v = pairs[channel // 3]
            wave = torch.outer((u * places).cos(), (v * places).cos()) * math.sqrt(
                (1 + (u > 0)) * (1 + (v > 0))
            )
            basis[channel, channel % 3] = wave / PIXELS_PER_LATENT**2
        return basis.to(device)


class HuggingFaceTextEncoder:
    """Frozen encoder of transformers with its tokenizer."""

    def __init__(
        self,
        folder: str,
        kind: str,
        *,
        width: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        _, self.output, field = TEXT_ENCODERS[kind]
        self.length, self.device = length, device
        self.tokenizer, self.model = load_text_encoder(folder, kind, dtype=dtype)
        self.model.to(device).eval().requires_grad_(False)
        found = self.model.config.hidden_size
        if found != width:
            raise problem_error(
                "conflict",
                f"the encoder in {folder} is {found} wide, but model.{field} is {width}",
                path=("model", "encoder", f"{kind}_encoder"),
                hint=f"use an encoder of width {width}",
            )

    @torch.no_grad()
    def __call__(self, captions: Sequence[str]) -> Tensor:
        """Return features [B, T, E] of T5, or [B, V] of CLIP."""
        tokens = self.tokenizer(
            list(captions),
            truncation=True,
            max_length=self.length,
            padding="max_length",
            return_tensors="pt",
        )
        features: Tensor = self.model(input_ids=tokens["input_ids"].to(self.device))[self.output]
        return features


def load_text_encoder(folder: str, kind: str, *, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return tokenizer and model from a folder in transformers' format.

    Raises:
        ProblemsFound: if the folder does not contain such a model.
    """
    path: DataPath = ("model", "encoder", f"{kind}_encoder")
    transformers = import_text_encoder_library(path)
    name = TEXT_ENCODERS[kind][0]
    try:
        return (
            transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True),
            getattr(transformers, name).from_pretrained(folder, local_files_only=True, dtype=dtype),
        )
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise problem_error(
            "file",
            f"cannot read a {name} with its tokenizer from {folder}: {first}",
            path=path,
        ) from None


def import_text_encoder_library(path: DataPath) -> Any:
    """Return the package transformers.

    Raises:
        ProblemsFound: if it is not installed.
    """
    try:
        return import_module("transformers")
    except ImportError:
        hint = 'pip install "titanrun[transformers]"'
        raise problem_error(
            "usage",
            "T5 and CLIP need the package 'transformers', which is not installed",
            path=path,
            hint=hint,
        ) from None


def build_text_encoders(
    config: FluxConfig, *, device: torch.device, dtype: torch.dtype
) -> tuple[TextEncoder, TextEncoder]:
    """Build the encoder of each token of a caption, and that of the whole caption."""
    encoder = config.encoder
    length, t5_width, clip_width = (
        unwrap_auto(encoder.max_t5_encoding_len),
        unwrap_auto(config.context_in_dim),
        unwrap_auto(config.vec_in_dim),
    )
    t5: TextEncoder = TinyTextEncoder(t5_width, length=length, device=device)
    clip: TextEncoder = TinyPooledTextEncoder(clip_width, length=length, device=device)
    if encoder.t5_encoder != TINY:
        t5 = HuggingFaceTextEncoder(
            unwrap_auto(encoder.t5_encoder),
            "t5",
            width=t5_width,
            length=length,
            device=device,
            dtype=dtype,
        )
    if encoder.clip_encoder != TINY:
        clip = HuggingFaceTextEncoder(
            unwrap_auto(encoder.clip_encoder),
            "clip",
            width=clip_width,
            length=CLIP_TOKENS,
            device=device,
            dtype=dtype,
        )
    return t5, clip


def build_image_autoencoder(
    config: FluxConfig, *, device: torch.device, dtype: torch.dtype
) -> ImageAutoencoder:
    """Build the autoencoder.

    Raises:
        ProblemsFound: if its file does not contain one, or does not fit the config.
    """
    written, channels = (
        unwrap_auto(config.encoder.autoencoder_path),
        unwrap_auto(config.in_channels) // PATCH_SIZE**2,
    )
    if written == TINY:
        return TinyAutoencoder(channels)
    path: DataPath = ("model", "encoder", "autoencoder_path")
    try:
        state = load_file(Path(written))
    except (OSError, SafetensorError) as error:
        raise problem_error(
            "file",
            f"cannot read {written}: {error}",
            path=path,
            hint="use ae.safetensors of FLUX.1",
        ) from None
    made = build_autoencoder(state, source=written)
    if made.latent_channels != channels:
        message = (
            f"the autoencoder has {made.latent_channels} channels, but model.in_channels "
            f"{config.in_channels} is four times {channels}"
        )
        raise problem_error(
            "conflict",
            message,
            path=path,
            hint=f"set model.in_channels to {PATCH_SIZE**2 * made.latent_channels}",
        )
    made.to(device, dtype).eval().requires_grad_(False)
    return made


def patchify_latents(latents_BLHW: Tensor) -> Tensor:
    """Pack 2 x 2 latents into tokens [B, I, 4 L], row by row.

    In a token the four latents of each channel follow each other.
    """
    patches = latents_BLHW.unfold(2, PATCH_SIZE, PATCH_SIZE).unfold(3, PATCH_SIZE, PATCH_SIZE)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def unpatchify_latents(tokens_BIC: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the latents [B, L, H, W] of tokens on a grid."""
    patches: Tensor = tokens_BIC.unflatten(1, grid).unflatten(-1, (-1, PATCH_SIZE, PATCH_SIZE))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
