"""A class of transformers with the parts and weights that every model of titanrun has.

Shapes: B batch, T tokens of a row, V vocabulary.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from titanrun.config.problems import fail
from titanrun.distributed.dtypes import default_dtype
from titanrun.distributed.meta_device import allocate_parameters
from titanrun.distributed.seeds import WeightGenerator
from titanrun.distributed.shards import fill
from titanrun.models.transformers.architecture import NORM, OUTPUT, parts_of, skeleton
from titanrun.models.transformers.config import TransformersConfig


class TransformersModel(nn.Module):
    """Token ids to logits of the next token, as the class of transformers computes them.

    Its parts are the class's own modules under titanrun's names; the class, which is no part, calls them. A row whose positions start
    anew is several documents for classes that tell them by positions, which is the class's choice.
    """

    tok_embeddings: nn.Module
    layers: nn.ModuleList
    norm: nn.Module
    output: nn.Module

    def __init__(self, config: TransformersConfig, *, seq_len: int) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        made = skeleton(config)
        self.paths = parts_of(made)
        for name, path in self.paths.items():
            self.add_module(name, made.get_submodule(path))
        if NORM not in self.paths:
            self.norm = nn.Identity()
        self.is_tied = made.get_output_embeddings().weight is made.get_input_embeddings().weight
        self.takes_positions = "position_ids" in inspect.signature(made.forward).parameters
        # in a tuple, which is no module: its weights must not be listed twice
        self.whole = (made,)

    @property
    def huggingface(self) -> Any:
        """The module of transformers."""
        return self.whole[0]

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """Logits [B, T, V]. Positions are [1, T] or [B, T], and 0 to T - 1 where absent."""
        positions = {}
        if positions_BT is not None:
            if not self.takes_positions:
                message = f"{type(self.huggingface).__name__} takes no positions, and the data brings some"
                raise fail(
                    "conflict",
                    message,
                    path=("training", "dataset"),
                    help="take data whose rows are not numbered",
                )
            positions = {"position_ids": positions_BT}
        logits_BTV: Tensor = self.huggingface(
            input_ids=tokens_BT, use_cache=False, **positions
        ).logits
        return logits_BTV

    def train(self, mode: bool = True) -> Self:
        """As every module; the class, which is no part, hears of it too."""
        self.huggingface.train(mode)
        return super().train(mode)

    @torch.no_grad()
    def init_weights(self, generator: Generator | None = None) -> None:
        """Fill every parameter by the class's own rule, and every buffer. A tied matrix is drawn as the embedding.

        The rule draws from torch's global generator, a part or a layer at a time, whole on every rank.
        """
        first = next(self.parameters())
        device = first.device if generator is None else generator.device
        if self.is_tied:
            self.output.weight = self.tok_embeddings.weight
        with default_dtype(first.dtype):
            drawn = TransformersModel(self.config, seq_len=self.seq_len)
        for name, buffer in self.huggingface_buffers(drawn):
            holder, _, leaf = name.rpartition(".")
            setattr(self.huggingface.get_submodule(holder), leaf, buffer.to(device))
        for name, part in drawn.pieces():
            own = dict(self.get_submodule(name).named_parameters())
            if self.is_tied and name == OUTPUT:
                own.pop("weight")
            if own:
                allocate_parameters(part, device)
                with drawing(next(iter(own.values())), generator, device):
                    part.to(device).apply(drawn.huggingface._init_weights)
                for leaf, weight in part.named_parameters():
                    if leaf in own:
                        fill(own[leaf], weight)
                part.to("meta")

    @staticmethod
    def huggingface_buffers(model: "TransformersModel") -> Iterator[tuple[str, Tensor]]:
        """Every buffer of the class, by its name in it, with what the class computed for it."""
        yield from [(name, buffer.clone()) for name, buffer in model.huggingface.named_buffers()]

    def pieces(self) -> Iterator[tuple[str, nn.Module]]:
        """What is drawn at once, by name: each layer, and each other part."""
        for name, part in self.named_children():
            if name == "layers":
                yield from ((f"layers.{index}", layer) for index, layer in part.named_children())
            else:
                yield name, part


@contextmanager
def drawing(weight: Tensor, generator: Generator | None, device: torch.device) -> Iterator[None]:
    """Within the block torch's global generators are where the numbers of `weight` begin, and afterwards where they were before."""
    with torch.random.fork_rng(
        devices=[] if device.type == "cpu" else [device],
        device_type="cuda" if device.type == "cpu" else device.type,
    ):
        if isinstance(generator, WeightGenerator):
            generator.restart_for(weight)
            torch.manual_seed(generator.initial_seed())
        yield
