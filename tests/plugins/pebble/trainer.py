"""The kind of training `until_target`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from titanrun.recipe.recipe import Recipe
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.train_hook import TrainHook, TrainResult
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import WorkerJob


@dataclass(slots=True)
class TargetHook(TrainHook):
    """Stops the run once the loss was at the target for so many steps in a row."""

    target: float | None
    patience: int
    reached: int = 0

    def on_step_complete(self, loop: TrainLoop, is_last: bool) -> None:
        """Count the steps at the target."""
        is_there = self.target is not None and loop.guard.read().loss <= self.target
        self.reached = self.reached + 1 if is_there else 0
        if self.reached >= self.patience:
            loop.config = replace(loop.config, stop_after_step=loop.state.step)


@dataclass(slots=True, kw_only=True)
class TargetTrainer(TrainLoop):
    """Stops if the loss has been low enough for long enough."""

    target_hook: TargetHook

    def train(self) -> TrainResult:
        """Train to the target, or to the last step."""
        self.hooks = (*self.hooks, self.target_hook)
        # super() would be the class before dataclass added the slots
        outcome = TrainLoop.train(self)
        if self.target_hook.reached < self.target_hook.patience:
            return outcome
        return TrainResult(
            "finished",
            outcome.step,
            f"finished: loss at {self.target_hook.target} or below after step {outcome.step}",
        )


@contextmanager
def assembled_until_target(
    recipe: Recipe,
    job: WorkerJob,
    *,
    signals: SignalRequests,
    on_step: Callable[[int], None] = lambda step: None,
) -> Iterator[TargetTrainer]:
    """The loop of pretraining, with an eye on the loss."""
    with build_train_loop(recipe, job, signals=signals, on_step=on_step) as loop:
        parts = {part.name: getattr(loop, part.name) for part in fields(loop)}
        hook = TargetHook(recipe.training.target_loss, recipe.patience.steps)
        yield TargetTrainer(**parts, target_hook=hook)
