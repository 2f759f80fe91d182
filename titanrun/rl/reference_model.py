"""Frozen reference model of a policy."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from titanrun.components.data.token_batch import TokenBatch
from titanrun.training.engine import Engine


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """Callable that adds the reference's log-probabilities to batches.

    Collective: all ranks must call it equally often.

    Args:
        engine: the reference's engine.
        reference_context: turns the policy's own model into the reference.
    """

    engine: Engine
    reference_context: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self, batches: Sequence[TokenBatch], *, temperature: float) -> list[TokenBatch]:
        """Add the log-probability of each label to the batches.

        Logits are divided by the temperature, see `scale_logits`.
        """
        for batch in batches:
            with self.reference_context():
                found = self.engine.forward(batch, outputs=("logprobs",), temperature=temperature)[
                    "logprobs"
                ]
            batch.extra["reference"] = found.to(batch.tokens.device)
        return list(batches)
