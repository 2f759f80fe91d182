"""The dataloader section."""

from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, performance
from titanrun.config.types import NonNegativeInt, PositiveInt

HAS_WORKERS = ReadWhen(
    "settings-need-loader-processes",
    ".num_workers",
    "is 0",
    "set num_workers above 0, or remove it",
    not_values=(0,),
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

    num_workers: NonNegativeInt = performance(0, unit="processes", resume=True)
    """Processes on each rank that prepare sequences. With 0, the rank prepares them between its
    steps."""
    persistent_workers: bool = performance(False, resume=True, read_when=HAS_WORKERS)
    """Whether these processes persist when the data restarts. If false, each epoch and each
    validation starts its own."""
    prefetch_factor: PositiveInt | None = performance(
        None, unit="batches", resume=True, read_when=HAS_WORKERS
    )
    """Batches that each process prepares ahead. If null, 2."""
    pin_memory: bool = performance(False, resume=True, read_when=COPIES_TOKENS)
    """Whether batches of tokens wait in page-locked memory, from which they are copied while the
    device computes. The CPU needs no copy."""
