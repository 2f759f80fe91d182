"""The dataloader section."""

from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, performance
from titanrun.config.types import NonNegativeInt, OrAuto, PositiveInt
from titanrun.config.units import Duration, duration_to_seconds

HAS_WORKERS = ReadWhen(
    "settings-need-loader-processes",
    ".num_workers",
    "is 0",
    "set num_workers above 0, or remove it",
    not_values=(0,),
)
READS_STREAM = ReadWhen(
    "retries-need-a-stream",
    "training.dataset",
    "is not streamed",
    "remove it",
    fact="reads_a_stream",
)
COPIES_TOKENS = (
    ReadWhen(
        "pinning-needs-a-copy",
        "device",
        "is cpu",
        "remove it, or train on a gpu",
        not_values=("cpu",),
    ),
    ReadWhen(
        "pinning-needs-a-copy",
        "model.name",
        "is {run.model.name}, which takes {run.model.modality}",
        "remove it",
        fact="takes_tokens",
    ),
)


class DataLoaderConfig(Config):
    """Transfer of sequences from the data to the device.

    It does not affect which sequences are read, nor their order.
    """

    num_workers: OrAuto[NonNegativeInt] = performance(
        "auto", unit="processes", resume=True, examples=[4]
    )
    """Processes on each rank that prepare sequences. With 0, the rank prepares them between its
    steps.

    `auto`: 2 if training data is streamed, else 0."""
    persistent_workers: bool = performance(False, resume=True, read_when=HAS_WORKERS)
    """Whether these processes persist when the data restarts. If false, each epoch and each
    validation starts its own."""
    prefetch_factor: PositiveInt | None = performance(
        None, unit="batches", resume=True, read_when=HAS_WORKERS
    )
    """Batches that each process prepares ahead. If null, 2."""
    retry_timeout: Duration = performance(
        "15m", resume=True, examples=["2h"], read_when=READS_STREAM
    )
    """How long a request to remote files of a stream is repeated that fails. Afterwards the run
    ends with exit code 3. Ranks wait as long for each other's files, also local ones, before
    watchdogs may end them."""
    pin_memory: OrAuto[bool] = performance(
        "auto", resume=True, read_when=COPIES_TOKENS, examples=[True]
    )
    """Whether batches of tokens wait in page-locked memory, from which they are copied while the
    device computes. The CPU needs no copy.

    `auto`: true unless `device` is cpu."""

    @property
    def retry_timeout_seconds(self) -> float:
        """How long a request to remote files is repeated, and ranks wait for each other's files."""
        return duration_to_seconds(self.retry_timeout)
