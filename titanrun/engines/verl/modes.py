"""Blocks within which an engine trains or evaluates, or forgets its adapters."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

from torch import nn

from titanrun.components.checkpoints.adapters import STACKED, B


class Mode:
    """Brings back what is offloaded, and sets the model's mode; afterwards all is away again.

    Args:
        engine: titanrun.engines.verl.engine.VerlEngine.
        mode: what the block does; evaluation needs no optimizer state.
        disable_auto_offload: nothing is moved.
        zero_grad_on_exit: gradients are dropped after training; after an error they are anyway.
    """

    def __init__(
        self,
        engine: Any,
        mode: Literal["train", "eval"],
        *,
        disable_auto_offload: bool = False,
        zero_grad_on_exit: bool = True,
    ) -> None:
        self.engine, self.mode = engine, mode
        self.moves, self.drops = not disable_auto_offload, zero_grad_on_exit

    def __enter__(self) -> None:
        engine = self.engine.opened.engine
        self.engine.mode = self.mode
        self._move(str(engine.device))
        self.block = engine.train_mode() if self.mode == "train" else engine.eval_mode()
        self.block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.block.__exit__(None, None, None)
        if self.mode == "eval":
            let_go_of_gathered(self.engine.opened.engine.model)
        elif self.drops or kind is not None:
            self.engine.optimizer_zero_grad()
        self._move("cpu")
        self.engine.mode = None

    def _move(self, device: str) -> None:
        engine = self.engine
        if self.moves:
            engine._move(
                device,
                model=engine.param_offload,
                optimizer=engine.optimizer_offload and self.mode == "train",
            )


def let_go_of_gathered(model: nn.Module) -> None:
    """Frees gathered weights: without a backward pass nobody else does."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Adapters add nothing within the block: the second of their matrices is zero, and bit by bit what it was afterwards."""
    second = [weight for name, weight in model.named_parameters() if name.endswith((B, STACKED[1]))]
    kept = [weight.detach().clone() for weight in second]
    for weight in second:
        weight.detach().zero_()
    try:
        yield
    finally:
        for weight, before in zip(second, kept, strict=True):
            weight.detach().copy_(before)
