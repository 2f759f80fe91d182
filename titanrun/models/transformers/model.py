"""Model of transformers with the parts and weights that every model of titanrun has.

Shapes: B batch, T tokens of a sequence, V vocabulary.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from titanrun.config.problems import problem_error
from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.dtensor import copy_full_into_
from titanrun.distributed.dtypes import set_default_dtype
from titanrun.distributed.meta_device import allocate_parameters
from titanrun.models.transformers.architecture import (
    NORM,
    OUTPUT,
    build_transformers_skeleton,
    get_part_paths,
)
from titanrun.models.transformers.config import TransformersConfig


class TransformersModel(nn.Module):
    """Causal language model as the class of transformers computes it.

    Its parts are the class's modules under titanrun's names. The class itself, which is not
    registered as a module, calls them. A sequence whose positions restart consists of several
    documents for classes that separate them by positions, which is the class's choice.
    """

    tok_embeddings: nn.Module
    layers: nn.ModuleList
    norm: nn.Module
    output: nn.Module

    def __init__(self, config: TransformersConfig, *, seq_len: int) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        made = build_transformers_skeleton(config)
        self.part_paths = get_part_paths(made)
        for name, path in self.part_paths.items():
            self.add_module(name, made.get_submodule(path))
        if NORM not in self.part_paths:
            self.norm = nn.Identity()
        self.is_tied = made.get_output_embeddings().weight is made.get_input_embeddings().weight
        self.accepts_positions = "position_ids" in inspect.signature(made.forward).parameters
        # in a tuple, which is not registered: its weights must not be listed twice
        self.unregistered_model = (made,)

    @property
    def huggingface_model(self) -> Any:
        """Module of transformers."""
        return self.unregistered_model[0]

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the next token.

        Positions are [1, T] or [B, T], by default 0 to T - 1.

        Raises:
            ProblemsFound: if there are positions, but the class does not accept them.
        """
        positions = {}
        if positions_BT is not None:
            if not self.accepts_positions:
                message = (
                    f"{type(self.huggingface_model).__name__} does not accept positions, "
                    f"but the data contains them"
                )
                raise problem_error(
                    "conflict",
                    message,
                    path=("training", "dataset"),
                    hint="use data without positions",
                )
            positions = {"position_ids": positions_BT}
        logits_BTV: Tensor = self.huggingface_model(
            input_ids=tokens_BT, use_cache=False, **positions
        ).logits
        return logits_BTV

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, also of the unregistered class."""
        self.huggingface_model.train(mode)
        return super().train(mode)

    @torch.no_grad()
    def init_weights(self, generator: Generator | None = None) -> None:
        """Initialize every parameter by the class's rule, and every buffer.

        A tied matrix is drawn as the embedding. The rule draws from torch's global generator, a
        part or a layer at a time, whole on every rank.
        """
        first = next(self.parameters())
        device = first.device if generator is None else generator.device
        if self.is_tied:
            self.output.weight = self.tok_embeddings.weight
        with set_default_dtype(first.dtype):
            drawn = TransformersModel(self.config, seq_len=self.seq_len)
        for name, buffer in self.iter_huggingface_buffers(drawn):
            holder, _, leaf = name.rpartition(".")
            setattr(self.huggingface_model.get_submodule(holder), leaf, buffer.to(device))
        for name, part in drawn.iter_init_modules():
            own = dict(self.get_submodule(name).named_parameters())
            if self.is_tied and name == OUTPUT:
                own.pop("weight")
            if own:
                allocate_parameters(part, device)
                with use_weight_rng(next(iter(own.values())), generator, device):
                    part.to(device).apply(drawn.huggingface_model._init_weights)
                for leaf, weight in part.named_parameters():
                    if leaf in own:
                        copy_full_into_(own[leaf], weight)
                part.to("meta")

    @staticmethod
    def iter_huggingface_buffers(model: "TransformersModel") -> Iterator[tuple[str, Tensor]]:
        """Yield every buffer of the class by its name there, with its computed value."""
        yield from [
            (name, buffer.clone()) for name, buffer in model.huggingface_model.named_buffers()
        ]

    def iter_init_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules that are drawn at once, by name: each layer, and each other part."""
        for name, part in self.named_children():
            if name == "layers":
                yield from ((f"layers.{index}", layer) for index, layer in part.named_children())
            else:
                yield name, part


@contextmanager
def use_weight_rng(
    weight: Tensor, generator: Generator | None, device: torch.device
) -> Iterator[None]:
    """Seed torch's global generators for `weight` within the block, and restore them after."""
    with torch.random.fork_rng(
        devices=[] if device.type == "cpu" else [device],
        device_type="cuda" if device.type == "cpu" else device.type,
    ):
        if isinstance(generator, WeightInitRng):
            generator.seed_for_parameter(weight)
            torch.manual_seed(generator.initial_seed())
        yield
