"""Hook that compares the log-probabilities of generator and policy."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, NamedTuple

from titanrun.config.problems import DataPath, problem_error
from titanrun.models.shared.config import unwrap_auto
from titanrun.rl.algorithms.policy_losses import average_over_tokens
from titanrun.rl.config import RlConfig
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


class LogprobLimit(NamedTuple):
    """Limit of a metric of a step, the field that sets it, and how messages name the metric."""

    metric: str
    value: float
    path: DataPath
    words: str


@dataclass(slots=True)
class LogprobCheckHook(TrainHook):
    """Check of the log-probabilities recorded by the policy loss, before each update."""

    config: RlConfig

    def on_pre_optimizer_step(self, loop: "TrainLoop", inp: StepInput, output: StepOutput) -> None:
        """Raise ProblemsFound if generator and policy differ by more than the limit.

        Collective.
        """
        recorded = loop.engine.merge_across_stages(loop.step_metrics.flush(loop.engine.loss_group))
        inp.payload.recorded.update(
            average_over_tokens(recorded, num_tokens=inp.payload.packed.num_tokens)
        )
        for limit in self.get_limits():
            check_difference(inp.payload.recorded, limit, loop.state.step + 1)

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Drop what the optimizer step recorded: the next flush is for the policy loss alone."""
        loop.step_metrics.reset()

    def get_limits(self) -> list[LogprobLimit]:
        """Return the limits of a step."""
        sync = self.config.sync
        if self.config.batch_invariant:
            return [LogprobLimit("rl/logprob_diff_max", 0.0, ("rl", "batch_invariant"), "up to")]
        limits = (
            ("max", sync.max_logprob_diff, "max_logprob_diff", "up to"),
            ("mean", sync.max_logprob_diff_mean, "max_logprob_diff_mean", "a mean of"),
        )
        return [
            LogprobLimit(
                f"rl/logprob_diff_{kind}", unwrap_auto(limit), ("rl", "sync", field), words
            )
            for kind, limit, field, words in limits
            if limit is not None
        ]


def check_difference(recorded: Mapping[str, float], limit: LogprobLimit, step: int) -> None:
    """Raise ProblemsFound if a difference of a step is above its limit.

    One that is no number is left to the guard against non-finite gradients.
    """
    difference = recorded[limit.metric]
    if difference <= limit.value or isnan(difference):
        return
    raise problem_error(
        "data",
        f"at step {step} the generator's log-probabilities differ from the policy's "
        f"by {limit.words} {difference:.3g}, but the limit is {limit.value:g}",
        path=limit.path,
        hint="the generator has other weights, or rounds differently than the limit allows: "
        f"{limit.path[-1]}: auto allows for bfloat16 and for converters",
    )
