"""What turns pictures and captions into what the model sees: FLUX.1's frozen networks, or tiny stand-ins that a run makes itself.

Shapes: B samples, T tokens of text, E width of T5, V width of CLIP, H and W places of a latent picture, L channels of a latent.
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

from titanrun.config.problems import DataPath, fail
from titanrun.models.flux.autoencoder import autoencoder_of
from titanrun.models.flux.config import TINY, FluxConfig
from titanrun.models.shared.config import decided

CLIP_TOKENS = 77
# pixels of a side of one place of a latent picture
PIXELS = 8
PACKED = 2


class TextEncoder(Protocol):
    """Captions to features of each of their tokens, or of the whole."""

    def __call__(self, captions: Sequence[str]) -> Tensor: ...


class PictureCoder(Protocol):
    """Pictures from -1 to 1 to latents, and back."""

    latent_channels: int

    def encode(self, pictures_BCHW: Tensor, noise_BLHW: Tensor) -> Tensor: ...

    def decode(self, latents_BLHW: Tensor) -> Tensor: ...


class TinyText:
    """Random features of words: the same word always has the same ones."""

    def __init__(self, width: int, *, length: int, device: torch.device) -> None:
        self.width, self.length, self.device = width, length, device

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """[B, T, width]; places behind the caption hold zeros."""
        features_BTE = torch.zeros(len(captions), self.length, self.width)
        for features_TE, caption in zip(features_BTE, captions, strict=True):
            for place, word in enumerate(caption.lower().split()[: self.length]):
                features_TE[place] = torch.randn(
                    self.width, generator=Generator().manual_seed(zlib.crc32(word.encode()))
                )
        return features_BTE.to(self.device)


class TinyPooledText(TinyText):
    """The mean of the words' random features."""

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """[B, width]."""
        # as large as the features of one word
        return super().__call__(captions).sum(dim=1) / math.sqrt(self.length)


class TinyAutoencoder:
    """The lowest frequencies of each 8 x 8 pixels, by the discrete cosine transform of each colour."""

    def __init__(self, latent_channels: int) -> None:
        self.latent_channels = latent_channels

    def encode(self, pictures_BCHW: Tensor, noise_BLHW: Tensor) -> Tensor:
        """Latents [B, L, H, W]; nothing of them is drawn."""
        basis = self.basis(pictures_BCHW.device)
        patches = pictures_BCHW.unfold(2, PIXELS, PIXELS).unfold(3, PIXELS, PIXELS)
        return torch.einsum("bchwij,lcij->blhw", patches.float(), basis)

    def decode(self, latents_BLHW: Tensor) -> Tensor:
        """The pictures that have these frequencies and no other."""
        basis = self.basis(latents_BLHW.device) * PIXELS**2
        patches = torch.einsum("blhw,lcij->bchiwj", latents_BLHW.float(), basis)
        return patches.flatten(4, 5).flatten(2, 3)

    def basis(self, device: torch.device) -> Tensor:
        """Waves [L, 3, 8, 8] with a mean square of 1 over the colour that each is of, divided by 64."""
        places = (torch.arange(PIXELS, dtype=torch.float32) + 0.5) * math.pi / PIXELS
        pairs = sorted(
            ((u, v) for u in range(PIXELS) for v in range(PIXELS)),
            key=lambda pair: (sum(pair), pair),
        )
        basis = torch.zeros(self.latent_channels, 3, PIXELS, PIXELS)
        for channel in range(self.latent_channels):
            u, v = pairs[channel // 3]
            wave = torch.outer((u * places).cos(), (v * places).cos()) * math.sqrt(
                (1 + (u > 0)) * (1 + (v > 0))
            )
            basis[channel, channel % 3] = wave / PIXELS**2
        return basis.to(device)


class HuggingFaceText:
    """An encoder of transformers with its tokenizer, frozen."""

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
        path: DataPath = ("model", "encoder", f"{kind}_encoder")
        transformers = imported(path)
        model, self.output = {
            "t5": ("T5EncoderModel", "last_hidden_state"),
            "clip": ("CLIPTextModel", "pooler_output"),
        }[kind]
        self.length, self.device = length, device
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True
            )
            self.model = getattr(transformers, model).from_pretrained(
                folder, local_files_only=True, dtype=dtype
            )
        except (OSError, ValueError, KeyError) as error:
            first = str(error).strip().splitlines()[0]
            raise fail(
                "file",
                f"{folder} cannot be read as a {model} with its tokenizer: {first}",
                path=path,
            ) from None
        self.model.to(device).eval().requires_grad_(False)
        found = self.model.config.hidden_size
        if found != width:
            field = "context_in_dim" if kind == "t5" else "vec_in_dim"
            raise fail(
                "conflict",
                f"the encoder in {folder} is {found} wide, model.{field} {width}",
                path=path,
                help="take the other encoder",
            )

    @torch.no_grad()
    def __call__(self, captions: Sequence[str]) -> Tensor:
        """[B, T, E] of T5, [B, V] of CLIP."""
        tokens = self.tokenizer(
            list(captions),
            truncation=True,
            max_length=self.length,
            padding="max_length",
            return_tensors="pt",
        )
        features: Tensor = self.model(input_ids=tokens["input_ids"].to(self.device))[self.output]
        return features


def imported(path: DataPath) -> Any:
    """The package transformers. Raises ProblemsFound where it is missing."""
    try:
        return import_module("transformers")
    except ImportError:
        help = 'pip install "titanrun[transformers]"'
        raise fail(
            "usage",
            "T5 and CLIP need the package 'transformers', which is not installed",
            path=path,
            help=help,
        ) from None


def text_encoders(
    config: FluxConfig, *, device: torch.device, dtype: torch.dtype
) -> tuple[TextEncoder, TextEncoder]:
    """What stands for each token of a caption, and for all of it."""
    encoder = config.encoder
    length, t5_width, clip_width = (
        decided(encoder.max_t5_encoding_len),
        decided(config.context_in_dim),
        decided(config.vec_in_dim),
    )
    t5: TextEncoder = TinyText(t5_width, length=length, device=device)
    clip: TextEncoder = TinyPooledText(clip_width, length=length, device=device)
    if encoder.t5_encoder != TINY:
        t5 = HuggingFaceText(
            decided(encoder.t5_encoder),
            "t5",
            width=t5_width,
            length=length,
            device=device,
            dtype=dtype,
        )
    if encoder.clip_encoder != TINY:
        clip = HuggingFaceText(
            decided(encoder.clip_encoder),
            "clip",
            width=clip_width,
            length=CLIP_TOKENS,
            device=device,
            dtype=dtype,
        )
    return t5, clip


def picture_coder(config: FluxConfig, *, device: torch.device, dtype: torch.dtype) -> PictureCoder:
    """The autoencoder. Raises ProblemsFound where its file is no such."""
    written, channels = (
        decided(config.encoder.autoencoder_path),
        decided(config.in_channels) // PACKED**2,
    )
    if written == TINY:
        return TinyAutoencoder(channels)
    path: DataPath = ("model", "encoder", "autoencoder_path")
    try:
        state = load_file(Path(written))
    except (OSError, SafetensorError) as error:
        raise fail(
            "file",
            f"{written} cannot be read: {error}",
            path=path,
            help="take ae.safetensors of FLUX.1",
        ) from None
    made = autoencoder_of(state, source=written)
    if made.latent_channels != channels:
        message = f"the autoencoder has {made.latent_channels} channels, and model.in_channels {config.in_channels} are four times {channels}"
        raise fail(
            "conflict",
            message,
            path=path,
            help=f"set model.in_channels to {PACKED**2 * made.latent_channels}",
        )
    made.to(device, dtype).eval().requires_grad_(False)
    return made


def packed(latents_BLHW: Tensor) -> Tensor:
    """Tokens of 2 x 2 places, row by row, each the channels' four places one after the other: [B, I, 4 L]."""
    patches = latents_BLHW.unfold(2, PACKED, PACKED).unfold(3, PACKED, PACKED)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def unpacked(tokens_BIC: Tensor, grid: tuple[int, int]) -> Tensor:
    """The latents [B, L, H, W] of tokens of a grid."""
    patches = tokens_BIC.unflatten(1, grid).unflatten(-1, (-1, PACKED, PACKED))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
