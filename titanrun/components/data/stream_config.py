"""Settings of datasets that can be tokenized while the run trains."""

from typing import ClassVar, Literal

from titanrun.components.data.spec.data_files import SUFFIXES
from titanrun.components.data.spec.remote_path import is_remote_path
from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, numerics
from titanrun.config.types import NonNegativeInt, OrAuto, PositiveInt

CONVERSATION_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
"""Suffixes of files that hold conversations."""
HUB_STREAM_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow")
"""Suffixes of files of the Hub that a stream reads."""
DEFAULT_WINDOW = 256
"""Records of a window by default, if documents continue across windows."""
DEFAULT_PACKED_WINDOW = 1024
"""Records of a window by default, if its documents are packed on their own: fewer leave more
padding."""
MAX_WINDOW_BYTES = 16 * 2**20
"""Size of its records, in bytes, after which a window ends."""
STREAMS = ReadWhen(
    "settings-need-a-stream",
    ".streaming",
    "is false",
    "set streaming: true, or remove it",
    values=(True,),
    fact="is_null",
)
SKIPS_BAD_FILES = ReadWhen(
    "limits-need-bad-files",
    ".bad_files",
    "is refuse",
    "set bad_files: skip, or remove it",
    values=("skip",),
)


class StreamFields(Config):
    """Fields of a dataset of documents that can be a stream.

    A choice sets `encodes`, the import string of the function that returns its `WindowEncoder`.
    """

    encodes: ClassVar[str]
    stream_suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    streaming: bool = numerics(False)
    """Whether documents are tokenized while the run trains, in bounded memory. If false, all are
    tokenized once, into an index, before the first step."""
    window: OrAuto[PositiveInt] | None = numerics(
        "auto", unit="records", examples=[512], read_when=STREAMS
    )
    """Consecutive records of a stream that are shuffled, and packed with best_fit or null,
    together.

    `auto`: 256, or 1024 with packing best_fit or null."""
    bad_files: Literal["refuse", "skip"] = numerics("refuse", read_when=STREAMS)
    """Handling of a compressed, parquet or arrow file of a stream that is damaged: end the run, or
    skip the rest of the file."""
    max_bad_files: NonNegativeInt = numerics(
        0, unit="files", examples=[3], read_when=SKIPS_BAD_FILES
    )
    """Largest number of damaged files that are skipped. With one more, the run ends."""

    @property
    def skips_bad_files(self) -> bool:
        """Whether the rest of a damaged file is left out."""
        return self.is_streamed and self.bad_files == "skip"

    @property
    def is_streamed(self) -> bool:
        """Whether documents are tokenized while the run trains."""
        return self.streaming

    @property
    def has_remote_files(self) -> bool:
        """Whether records come from the Hub or from an address."""
        path = getattr(self, "path", None)
        return getattr(self, "repo", None) is not None or (
            path is not None and is_remote_path(path)
        )

    @property
    def packs_windows(self) -> bool:
        """Whether sequences hold documents of one window only, else they continue across them."""
        return getattr(self, "packing", None) not in ("windows", "documents")

    def resolve_window(self) -> int | None:
        """Return the records of a window, None if the dataset is not a stream."""
        if not self.is_streamed:
            return None if self.window == "auto" else self.window
        if self.window is None or self.window == "auto":
            return DEFAULT_PACKED_WINDOW if self.packs_windows else DEFAULT_WINDOW
        return self.window
