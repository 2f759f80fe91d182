"""What a policy is held against: a model that nothing trains."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from titanrun.components.data.batch import TokenBatch
from titanrun.training.engine import Engine


@dataclass(frozen=True, slots=True)
class Reference:
    """Puts the reference's log-probabilities into batches. Every rank must call it as often as the others.

    Args:
        engine: of the reference.
        around: what makes the engine's model the reference, where it is the policy's own.
    """

    engine: Engine
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self, batch: TokenBatch, *, temperature: float) -> TokenBatch:
        """The batch with the log-probability of each label, of logits divided by the temperature (by 1 where it is 0)."""
        with self.around():
            found = self.engine.forward(
                batch, outputs=("logprobs",), temperature=temperature or 1.0
            )["logprobs"]
        batch.extra["reference"] = found.to(batch.tokens.device)
        return batch
