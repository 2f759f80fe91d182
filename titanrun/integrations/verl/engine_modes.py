"""Context managers for training and evaluation modes of an engine."""

from types import TracebackType
from typing import Any, Literal

from torch import nn


class EngineMode:
    """Context manager that loads offloaded state and sets the model's mode.

    On exit the state is offloaded again, and the mode is that of the enclosing block.

    Args:
        engine: titanrun.integrations.verl.verl_engine.VerlEngine.
        mode: mode of the block. Evaluation needs no optimizer state.
        disable_auto_offload: move nothing.
        zero_grad_on_exit: drop gradients after training. After an error they are always dropped.
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
        self.should_move_state, self.should_zero_grad = not disable_auto_offload, zero_grad_on_exit

    def __enter__(self) -> None:
        engine = self.engine.handle.engine
        self.outer_mode, self.engine.mode = self.engine.mode, self.mode
        self._move(str(engine.device))
        self.mode_context = engine.train_mode() if self.mode == "train" else engine.eval_mode()
        self.mode_context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.mode_context.__exit__(None, None, None)
        if self.mode == "eval":
            reshard_parameters(self.engine.handle.engine.model)
        elif self.should_zero_grad or kind is not None:
            self.engine.optimizer_zero_grad()
        self._move("cpu")
        self.engine.mode = self.outer_mode

    def _move(self, device: str) -> None:
        engine = self.engine
        if self.should_move_state:
            engine._move(
                device,
                model=engine.param_offload,
                optimizer=engine.optimizer_offload and self.mode == "train",
            )


def reshard_parameters(model: nn.Module) -> None:
    """Free gathered weights, which otherwise only a backward pass does."""
    for module in model.modules():
        reshard: Any = getattr(module, "reshard", None)
        if reshard is not None:
            reshard()
