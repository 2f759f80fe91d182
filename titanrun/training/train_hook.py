"""Interfaces of training hooks and step sources, and the data passed to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor

from titanrun.components.data.token_batch import Batch
from titanrun.training.engine import Engine
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.runners.forward_backward import Loss
from titanrun.training.train_state import TrainState

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop

DueEvent = Literal["validate", "log", "save"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Outcome of training.

    Args:
        state: the state of the run.
        step: number of optimizer steps done.
        message: description for users.
        exit_code: exit code of the worker. None if it follows from the state.
    """

    state: Literal["finished", "preempted", "failed"]
    step: int
    message: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """Work of one optimizer step on this rank.

    Args:
        batches: microbatches of this rank.
        loss: loss function. None for the engine's own.
        num_tokens: number of input tokens on all ranks.
        num_local_tokens: number of input tokens that this rank processes, for the throughput.
        payload: data that only the source and its hooks read.
    """

    batches: Sequence[Batch]
    loss: Loss | None = None
    num_tokens: int
    num_local_tokens: int
    payload: Any = None


ForwardBackwardCall = Callable[[StepInput], StepOutput]


def forward_backward(engine: Engine, inp: StepInput) -> StepOutput:
    """Add the gradients of a step to the engine."""
    return engine.forward_backward(inp.batches, loss=inp.loss)


class StepSource(Protocol):
    """Source of the inputs of optimizer steps. All ranks must call its methods together."""

    def start(self, state: TrainState) -> None:
        """Prepare for the first input after `state`."""

    def has_next(self) -> bool:
        """Return whether there is data for another step."""

    def next_input(self) -> StepInput | None:
        """Return the next input.

        Return None if there is nothing to learn from. No optimizer step follows then.
        """

    def on_update(self, step: int) -> None:
        """React to an optimizer step, whether or not its update was skipped."""

    def on_rollback(self, step: int) -> None:
        """React to a rollback to the checkpoint of `step`."""

    def collect_metrics(self, recorded: dict[str, float], inp: StepInput) -> dict[str, float]:
        """Return the metrics to log after a step.

        They are those recorded since the last call, and the source's own.
        """


class TrainHook:
    """Base class of hooks. By default events do nothing, and hooks override some of them.

    A hook that communicates must do so on the same steps on all ranks. `is_due` may therefore read
    only the step, the configuration and synchronized state. Only the loop advances counters and
    saves.
    """

    def on_train_begin(self, loop: "TrainLoop") -> None:
        """Run before the first step, after the source has started."""

    def on_step_begin(self, loop: "TrainLoop") -> None:
        """Run before the input of a step is loaded."""

    def on_input_ready(self, loop: "TrainLoop", inp: StepInput) -> StepInput:
        """Return the input to train on."""
        return inp

    def wrap_forward_backward(
        self, loop: "TrainLoop", call: ForwardBackwardCall
    ) -> ForwardBackwardCall:
        """Return the function that computes the gradients of a step."""
        return call

    def on_pre_optimizer_step(self, loop: "TrainLoop", inp: StepInput, output: StepOutput) -> None:
        """Run after the gradients are computed. May raise."""

    def on_update_rejected(
        self, loop: "TrainLoop", inp: StepInput, output: StepOutput, grad_norm: Tensor
    ) -> None:
        """Run if the update must not be applied, while the gradients still exist."""

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Run after an optimizer step, when the counters are advanced."""

    def is_due(self, loop: "TrainLoop", event: DueEvent, is_last: bool) -> bool:
        """Return whether `event` is due after the current step."""
        return False

    def on_validate(self, loop: "TrainLoop") -> dict[str, float]:
        """Return validation metrics on a step on which validation is due."""
        return {}

    def on_log(self, loop: "TrainLoop") -> dict[str, float]:
        """Return additional metrics of the line to log."""
        return {}

    def on_pre_save(self, loop: "TrainLoop") -> None:
        """Run before a checkpoint is saved. May raise."""

    def on_save(self, loop: "TrainLoop") -> None:
        """Run after a checkpoint was saved."""

    def on_rollback(self, loop: "TrainLoop", step: int) -> None:
        """Run after a rollback to the checkpoint of `step`."""

    def on_step_complete(self, loop: "TrainLoop", is_last: bool) -> None:
        """Run after a step and its validation, log and checkpoint, if they were due."""

    def on_train_end(self, loop: "TrainLoop", result: TrainResult | None) -> None:
        """Run at the end of training. `result` is None if an error ended it."""


EVENTS = tuple(name for name in vars(TrainHook) if not name.startswith("__"))


def find_overriding_hooks(hooks: Sequence[TrainHook]) -> dict[str, tuple[TrainHook, ...]]:
    """Return, for each event, the hooks that override it, so that other hooks cost nothing."""
    return {
        event: tuple(
            hook for hook in hooks if getattr(type(hook), event) is not getattr(TrainHook, event)
        )
        for event in EVENTS
    }
