"""The autoencoder of FLUX.1, whose latents the model learns: 8 x 8 pixels become one place of a latent picture, and back.

Names of modules are those in ae.safetensors, so that its tensors need no mapping.

Shapes: B pictures, H and W places of a picture's sides, C channels, L channels of a latent.
"""

import re
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, scaled_dot_product_attention, silu

from titanrun.config.problems import ProblemsFound, fail

# latents as they come are shifted and scaled to mean 0 and variance 1 or so
SCALE, SHIFT = 0.3611, 0.1159
NORM_GROUPS, NORM_EPS = 32, 1e-6


class Autoencoder(nn.Module):
    """Pictures [B, 3, 8 H, 8 W] from -1 to 1 to what their latents are drawn from, and latents to pictures."""

    def __init__(self, widths: list[int], *, layers: int, latent_channels: int) -> None:
        """`widths`: channels at each resolution, finest first; `layers`: residual layers of each in the encoder."""
        super().__init__()
        self.latent_channels = latent_channels
        self.encoder = Encoder(widths, layers=layers, latent_channels=latent_channels)
        self.decoder = Decoder(widths, layers=layers, latent_channels=latent_channels)

    def encode(self, pictures_BCHW: Tensor, noise_BLHW: Tensor) -> Tensor:
        """Latents [B, L, H, W], drawn with the given noise, and normalised."""
        mean, log_variance = self.encoder(pictures_BCHW).chunk(2, dim=1)
        drawn_BLHW = mean + (0.5 * log_variance).exp() * noise_BLHW.to(mean.dtype)
        return (drawn_BLHW - SHIFT) * SCALE

    def decode(self, latents_BLHW: Tensor) -> Tensor:
        """Pictures from normalised latents."""
        pictures_BCHW: Tensor = self.decoder(latents_BLHW / SCALE + SHIFT)
        return pictures_BCHW


class Encoder(nn.Module):
    """Pictures to mean and log variance of latents."""

    def __init__(self, widths: list[int], *, layers: int, latent_channels: int) -> None:
        super().__init__()
        self.conv_in = conv3(3, widths[0])
        self.down = nn.ModuleList()
        inputs = widths[0]
        for index, width in enumerate(widths):
            level = nn.Module()
            level.block = nn.ModuleList(
                Residual(inputs if layer == 0 else width, width) for layer in range(layers)
            )
            if index + 1 < len(widths):
                level.downsample = Downsample(width)
            self.down.append(level)
            inputs = width
        self.mid = Middle(inputs)
        self.norm_out = group_norm(inputs)
        self.conv_out = conv3(inputs, 2 * latent_channels)

    def forward(self, pictures_BCHW: Tensor) -> Tensor:
        h_BCHW = self.conv_in(pictures_BCHW)
        for level in self.down:
            for block in level.block:
                h_BCHW = block(h_BCHW)
            if hasattr(level, "downsample"):
                h_BCHW = level.downsample(h_BCHW)
        moments: Tensor = self.conv_out(silu(self.norm_out(self.mid(h_BCHW))))
        return moments


class Decoder(nn.Module):
    """Latents to pictures."""

    def __init__(self, widths: list[int], *, layers: int, latent_channels: int) -> None:
        super().__init__()
        inputs = widths[-1]
        self.conv_in = conv3(latent_channels, inputs)
        self.mid = Middle(inputs)
        levels = []
        for index, width in reversed(list(enumerate(widths))):
            level = nn.Module()
            level.block = nn.ModuleList(
                Residual(inputs if layer == 0 else width, width) for layer in range(layers + 1)
            )
            if index > 0:
                level.upsample = Upsample(width)
            levels.append(level)
            inputs = width
        # in the file the finest comes first, and the coarsest is computed first
        self.up = nn.ModuleList(reversed(levels))
        self.norm_out = group_norm(inputs)
        self.conv_out = conv3(inputs, 3)

    def forward(self, latents_BLHW: Tensor) -> Tensor:
        h_BCHW = self.mid(self.conv_in(latents_BLHW))
        for level in reversed(self.up):
            for block in level.block:
                h_BCHW = block(h_BCHW)
            if hasattr(level, "upsample"):
                h_BCHW = level.upsample(h_BCHW)
        pictures: Tensor = self.conv_out(silu(self.norm_out(h_BCHW)))
        return pictures


class Middle(nn.Module):
    """Two residual layers with attention between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1, self.attn_1, self.block_2 = (
            Residual(width, width),
            SpatialAttention(width),
            Residual(width, width),
        )

    def forward(self, h_BCHW: Tensor) -> Tensor:
        mixed: Tensor = self.block_2(self.attn_1(self.block_1(h_BCHW)))
        return mixed


class Residual(nn.Module):
    """Two convolutions beside the stream."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = group_norm(inputs), conv3(inputs, outputs)
        self.norm2, self.conv2 = group_norm(outputs), conv3(outputs, outputs)
        if inputs != outputs:
            self.nin_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, h_BCHW: Tensor) -> Tensor:
        added = self.conv2(silu(self.norm2(self.conv1(silu(self.norm1(h_BCHW))))))
        stream: Tensor = self.nin_shortcut(h_BCHW) if hasattr(self, "nin_shortcut") else h_BCHW
        return stream + added


class SpatialAttention(nn.Module):
    """Each place of the picture sees all others, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = group_norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, h_BCHW: Tensor) -> Tensor:
        normed = self.norm(h_BCHW)
        q, k, v = (
            part(normed).flatten(2).transpose(1, 2).unsqueeze(1)
            for part in (self.q, self.k, self.v)
        )
        seen_BCHW = (
            scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(h_BCHW.shape)
        )
        out: Tensor = h_BCHW + self.proj_out(seen_BCHW)
        return out


class Downsample(nn.Module):
    """Halves both sides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, h_BCHW: Tensor) -> Tensor:
        # at the right and at the bottom only
        smaller: Tensor = self.conv(pad(h_BCHW, (0, 1, 0, 1)))
        return smaller


class Upsample(nn.Module):
    """Doubles both sides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = conv3(width, width)

    def forward(self, h_BCHW: Tensor) -> Tensor:
        larger: Tensor = self.conv(interpolate(h_BCHW, scale_factor=2.0, mode="nearest"))
        return larger


def conv3(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution that sees the neighbours of each place and keeps the size."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def group_norm(width: int) -> nn.GroupNorm:
    """The norm of every layer."""
    return nn.GroupNorm(NORM_GROUPS, width, eps=NORM_EPS)


def autoencoder_of(state: Mapping[str, Tensor], *, source: str) -> Autoencoder:
    """The autoencoder whose weights these are; their shapes say its sizes. Raises ProblemsFound where they are no autoencoder's."""
    levels = {
        int(found[1])
        for name in state
        if (found := re.match(r"encoder\.down\.(\d+)\.block\.0\.conv1\.weight$", name))
    }
    layers = len(
        {name for name in state if re.match(r"encoder\.down\.0\.block\.\d+\.conv1\.weight$", name)}
    )
    if not levels or levels != set(range(len(levels))) or "encoder.conv_out.weight" not in state:
        raise not_an_autoencoder(source, "it has no encoder.down")
    widths = [
        state[f"encoder.down.{level}.block.0.conv1.weight"].size(0) for level in sorted(levels)
    ]
    made = Autoencoder(
        widths, layers=layers, latent_channels=state["encoder.conv_out.weight"].size(0) // 2
    )
    shapes = {name: tensor.shape for name, tensor in made.state_dict().items()}
    odd = sorted(
        name
        for name in shapes.keys() | state.keys()
        if name not in shapes or name not in state or state[name].shape != shapes[name]
    )
    if odd:
        raise not_an_autoencoder(source, f"{odd[0]} is not as expected")
    made.load_state_dict(dict(state))
    return made


def not_an_autoencoder(source: str, why: str) -> ProblemsFound:
    """The problem with a file of other weights."""
    help = "take ae.safetensors of FLUX.1"
    return fail(
        "file",
        f"{source} does not hold FLUX.1's autoencoder: {why}",
        path=("model", "encoder", "autoencoder_path"),
        help=help,
    )
