"""Autoencoder of FLUX.1, which maps 8 x 8 pixels to one position of a latent image.

Module names are those in ae.safetensors, so that its tensors need no mapping.

Shapes: B images, H and W height and width of a latent image, C channels, L channels of a latent.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, silu

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.models.shared.sdpa_attention import FullAttention

# raw latents are shifted and scaled to a mean of about 0 and a variance of about 1
SCALE, SHIFT = 0.3611, 0.1159
NORM_GROUPS, NORM_EPS = 32, 1e-6


class FluxAutoencoder(nn.Module):
    """Autoencoder from images [B, 3, 8 H, 8 W] in [-1, 1] to latents and back.

    The encoder predicts the distribution from which latents are drawn.
    """

    def __init__(self, widths: list[int], *, layers: int, latent_channels: int) -> None:
        """Create the modules.

        Args:
            widths: channels at each resolution, finest first.
            layers: residual layers of each resolution in the encoder.
            latent_channels: channels of a latent.
        """
        super().__init__()
        self.latent_channels = latent_channels
        self.encoder = ImageEncoder(widths, layers=layers, latent_channels=latent_channels)
        self.decoder = ImageDecoder(widths, layers=layers, latent_channels=latent_channels)

    def encode(self, images_BCHW: Tensor, noise_BLHW: Tensor) -> Tensor:
        """Return normalized latents [B, L, H, W], drawn with the given noise."""
        mean, log_variance = self.encoder(images_BCHW).chunk(2, dim=1)
        drawn_BLHW: Tensor = mean + (0.5 * log_variance).exp() * noise_BLHW.to(mean.dtype)
        return (drawn_BLHW - SHIFT) * SCALE

    def decode(self, latents_BLHW: Tensor) -> Tensor:
        """Return images [B, 3, 8 H, 8 W] from normalized latents."""
        images_BCHW: Tensor = self.decoder(latents_BLHW / SCALE + SHIFT)
        return images_BCHW


class Level(nn.Module):
    """Residual layers of one resolution, and the resampling to the next one, if any."""

    block: nn.ModuleList
    downsample: "Downsample"
    upsample: "Upsample"


class ImageEncoder(nn.Module):
    """Encoder from images to mean and log variance of latents."""

    def __init__(self, widths: list[int], *, layers: int, latent_channels: int) -> None:
        super().__init__()
        self.conv_in = build_conv3x3(3, widths[0])
        self.down = nn.ModuleList()
        inputs = widths[0]
        for index, width in enumerate(widths):
            level = Level()
            level.block = nn.ModuleList(
                ResidualBlock(inputs if layer == 0 else width, width) for layer in range(layers)
            )
            if index + 1 < len(widths):
                level.downsample = Downsample(width)
            self.down.append(level)
            inputs = width
        self.mid = MiddleBlock(inputs)
        self.norm_out = build_group_norm(inputs)
        self.conv_out = build_conv3x3(inputs, 2 * latent_channels)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return mean and log variance, concatenated: [B, 2 L, H, W]."""
        h_BCHW = self.conv_in(images_BCHW)
        for level in cast(Iterable[Level], self.down):
            for block in level.block:
                h_BCHW = block(h_BCHW)
            if hasattr(level, "downsample"):
                h_BCHW = level.downsample(h_BCHW)
        moments: Tensor = self.conv_out(silu(self.norm_out(self.mid(h_BCHW))))
        return moments


class ImageDecoder(nn.Module):
    """Decoder from latents to images."""

    def __init__(self, widths: list[int], *, layers: int, latent_channels: int) -> None:
        super().__init__()
        inputs = widths[-1]
        self.conv_in = build_conv3x3(latent_channels, inputs)
        self.mid = MiddleBlock(inputs)
        levels = []
        for index, width in reversed(list(enumerate(widths))):
            level = Level()
            level.block = nn.ModuleList(
                ResidualBlock(inputs if layer == 0 else width, width) for layer in range(layers + 1)
            )
            if index > 0:
                level.upsample = Upsample(width)
            levels.append(level)
            inputs = width
        # in the file the finest level comes first, but the coarsest is computed first
        self.up = nn.ModuleList(reversed(levels))
        self.norm_out = build_group_norm(inputs)
        self.conv_out = build_conv3x3(inputs, 3)

    def forward(self, latents_BLHW: Tensor) -> Tensor:
        """Return images [B, 3, 8 H, 8 W]."""
        h_BCHW = self.mid(self.conv_in(latents_BLHW))
        for level in reversed(cast(Sequence[Level], self.up)):
            for block in level.block:
                h_BCHW = block(h_BCHW)
            if hasattr(level, "upsample"):
                h_BCHW = level.upsample(h_BCHW)
        images: Tensor = self.conv_out(silu(self.norm_out(h_BCHW)))
        return images


class MiddleBlock(nn.Module):
    """Two residual layers with attention between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1, self.attn_1, self.block_2 = (
            ResidualBlock(width, width),
            SpatialAttention(width),
            ResidualBlock(width, width),
        )

    def forward(self, h_BCHW: Tensor) -> Tensor:
        """Return features of the same shape."""
        mixed: Tensor = self.block_2(self.attn_1(self.block_1(h_BCHW)))
        return mixed


class ResidualBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = build_group_norm(inputs), build_conv3x3(inputs, outputs)
        self.norm2, self.conv2 = build_group_norm(outputs), build_conv3x3(outputs, outputs)
        if inputs != outputs:
            self.nin_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, h_BCHW: Tensor) -> Tensor:
        """Return the sum of the input and the convolutions."""
        added: Tensor = self.conv2(silu(self.norm2(self.conv1(silu(self.norm1(h_BCHW))))))
        stream: Tensor = self.nin_shortcut(h_BCHW) if hasattr(self, "nin_shortcut") else h_BCHW
        return stream + added


class SpatialAttention(nn.Module):
    """Attention over all positions of the image with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = build_group_norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))
        self.attention = FullAttention()

    def forward(self, h_BCHW: Tensor) -> Tensor:
        """Return the sum of the input and the attention output."""
        normed = self.norm(h_BCHW)
        q, k, v = (
            part(normed).flatten(2).transpose(1, 2).unsqueeze(1)
            for part in (self.q, self.k, self.v)
        )
        attended = self.attention(q, k, v, None)
        attended_BCHW = attended.squeeze(1).transpose(1, 2).reshape(h_BCHW.shape)
        out: Tensor = h_BCHW + self.proj_out(attended_BCHW)
        return out


class Downsample(nn.Module):
    """Convolution that halves height and width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, h_BCHW: Tensor) -> Tensor:
        """Return features of half the height and width."""
        # pad at the right and at the bottom only
        smaller: Tensor = self.conv(pad(h_BCHW, (0, 1, 0, 1)))
        return smaller


class Upsample(nn.Module):
    """Convolution after doubling height and width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = build_conv3x3(width, width)

    def forward(self, h_BCHW: Tensor) -> Tensor:
        """Return features of twice the height and width."""
        larger: Tensor = self.conv(interpolate(h_BCHW, scale_factor=2.0, mode="nearest"))
        return larger


def build_conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    """Build a 3 x 3 convolution that keeps height and width."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def build_group_norm(width: int) -> nn.GroupNorm:
    """Build the norm of every layer."""
    return nn.GroupNorm(NORM_GROUPS, width, eps=NORM_EPS)


def build_autoencoder(state: Mapping[str, Tensor], *, source: str) -> FluxAutoencoder:
    """Build the autoencoder of these weights, whose shapes determine its sizes.

    Raises:
        ProblemsFound: if the weights are not those of an autoencoder.
    """
    levels = {
        int(found[1])
        for name in state
        if (found := re.match(r"encoder\.down\.(\d+)\.block\.0\.conv1\.weight$", name))
    }
    layers = len(
        {name for name in state if re.match(r"encoder\.down\.0\.block\.\d+\.conv1\.weight$", name)}
    )
    if not levels or levels != set(range(len(levels))) or "encoder.conv_out.weight" not in state:
        raise build_autoencoder_error(source, "encoder.down is missing")
    widths = [
        state[f"encoder.down.{level}.block.0.conv1.weight"].size(0) for level in sorted(levels)
    ]
    made = FluxAutoencoder(
        widths, layers=layers, latent_channels=state["encoder.conv_out.weight"].size(0) // 2
    )
    shapes = {name: tensor.shape for name, tensor in made.state_dict().items()}
    odd = sorted(
        name
        for name in shapes.keys() | state.keys()
        if name not in shapes or name not in state or state[name].shape != shapes[name]
    )
    if odd:
        raise build_autoencoder_error(source, f"{odd[0]} has an unexpected name or shape")
    made.load_state_dict(dict(state))
    return made


def build_autoencoder_error(source: str, why: str) -> ProblemsFound:
    """Build the error of a file with other weights."""
    hint = "use ae.safetensors of FLUX.1"
    return problem_error(
        "file",
        f"{source} does not contain FLUX.1's autoencoder: {why}",
        path=("model", "encoder", "autoencoder_path"),
        hint=hint,
    )
