"""Hook that generates text or images with the model being trained."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.generation_samples import ImageSampler, TextSampler
from titanrun.training.train_hook import TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class SamplesHook(TrainHook):
    """Generation of samples at a fixed interval of steps."""

    sampler: TextSampler | ImageSampler

    def on_step_complete(self, loop: "TrainLoop", is_last: bool) -> None:
        """Generate samples if they are due. All ranks must call this."""
        self.sampler.after_step(loop.state.step)
