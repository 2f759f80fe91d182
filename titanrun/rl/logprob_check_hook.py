"""Hook that compares the log-probabilities of generator and policy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.config.problems import problem_error
from titanrun.rl.algorithms.policy_losses import average_over_tokens
from titanrun.rl.config import RlConfig
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


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
        self.check_difference(inp.payload.recorded["rl/logprob_diff_max"], loop.state.step + 1)

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Drop what the optimizer step recorded: the next flush is for the policy loss alone."""
        loop.step_metrics.reset()

    def check_difference(self, difference: float, step: int) -> None:
        """Raise ProblemsFound if the largest difference of a step is above the limit."""
        is_invariant = self.config.batch_invariant
        limit = 0.0 if is_invariant else self.config.sync.max_logprob_diff
        if limit is None or difference <= limit:
            return
        message = (
            f"at step {step} the generator's log-probabilities differ from the policy's "
            f"by up to {difference:.3g}, but the limit is {limit:g}"
        )
        path = ("rl", "batch_invariant") if is_invariant else ("rl", "sync", "max_logprob_diff")
        raise problem_error(
            "data",
            message,
            path=path,
            hint="the generator has other weights, or rounds differently: bfloat16 and "
            "float8_linear with tensorwise scales need max_logprob_diff: 0.05",
        )
