"""Hook that adds to batches what the loss reads beside tokens."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from titanrun.training.preference_inputs import PrepareBatchesFn
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class LossInputsHook(TrainHook):
    """Addition of what the loss reads, such as a reference's outputs, to the batches of a step."""

    prepare: PrepareBatchesFn

    def on_input_ready(self, loop: "TrainLoop", inp: StepInput) -> StepInput:
        """Return the input with the additions.

        Collective if models are sharded, or if a value is over the whole step.
        """
        return replace(inp, batches=self.prepare(inp.batches))
