"""Step source of pretraining and fine-tuning, which reads batches from a data loader."""

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from titanrun.components.data.token_collator import Collator
from titanrun.training.train_hook import StepInput
from titanrun.training.train_state import TrainState


class SampleSource(Protocol):
    """Source of this rank's samples, one global batch at a time."""

    def has_next(self) -> bool:
        """Return whether there is another global batch."""
        ...

    def next_samples(self) -> NDArray[Any]:
        """Return this rank's samples of the next global batch."""
        ...

    def collect_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call. All ranks must call this."""
        ...


@dataclass(slots=True, kw_only=True)
class DataSource:
    """Source of steps on the global batches of a data loader.

    Args:
        dataloader: samples of this rank.
        collator: builds batches from samples.
        local_batch_size: number of samples in a batch.
        seq_len: number of tokens in a sample.
        tokens_per_step: number of tokens in a global batch, over all ranks.
    """

    dataloader: SampleSource
    collator: Collator
    local_batch_size: int
    seq_len: int
    tokens_per_step: int

    def start(self, state: TrainState) -> None:
        """Do nothing: the checkpoint has restored the data position."""

    def has_next(self) -> bool:
        """Return whether there is another global batch."""
        return self.dataloader.has_next()

    def next_input(self) -> StepInput:
        """Return the batches of this rank."""
        samples = self.dataloader.next_samples()
        return StepInput(
            batches=self.collator.collate_train(samples, self.local_batch_size),
            num_tokens=self.tokens_per_step,
            num_local_tokens=len(samples) * self.seq_len,
        )

    def on_update(self, step: int) -> None:
        """Do nothing."""

    def on_rollback(self, step: int) -> None:
        """Do nothing.

        The data position is kept, so that the data since the checkpoint is skipped.
        """

    def collect_metrics(self, recorded: dict[str, float], inp: StepInput) -> dict[str, float]:
        """Return the recorded metrics and those of the data loader."""
        return recorded | self.dataloader.collect_metrics()
