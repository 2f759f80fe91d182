"""The kind of training `until_target`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from titanrun.recipe.recipe import Recipe
from titanrun.training.signals import SignalRequests
from titanrun.training.trainer import Outcome, Trainer
from titanrun.worker.assemble import assembled
from titanrun.worker.job import Job


@dataclass(slots=True, kw_only=True)
class TargetTrainer(Trainer):
    """Stops where the loss has been low enough for long enough."""

    target: float | None
    patience: int
    reached: int = 0

    def fit(self) -> Outcome:
        """Trains to the target, or to the last step."""
        self.on_step_end = self.look
        # the method of a base class is named: a dataclass with slots is made anew, and super() would mean the first one
        outcome = Trainer.fit(self)
        if self.reached < self.patience:
            return outcome
        return Outcome(
            "finished",
            outcome.step,
            f"finished: loss at {self.target} or below after step {outcome.step}",
        )

    def look(self, step: int) -> None:
        """Counts the steps at the target."""
        is_there = self.target is not None and self.guard.read().loss <= self.target
        self.reached = self.reached + 1 if is_there else 0
        if self.reached >= self.patience:
            self.plan = replace(self.plan, stop_after=step)


@contextmanager
def assembled_until_target(
    recipe: Recipe,
    job: Job,
    *,
    signals: SignalRequests,
    on_step: Callable[[int], None] = lambda step: None,
) -> Iterator[TargetTrainer]:
    """The trainer of pretraining, with an eye on the loss."""
    with assembled(recipe, job, signals=signals, on_step=on_step) as trainer:
        parts = {part.name: getattr(trainer, part.name) for part in fields(trainer)}
        yield TargetTrainer(
            **parts, target=recipe.training.target_loss, patience=recipe.patience.steps
        )
