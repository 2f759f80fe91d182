"""Writer of a stream of token ids to a .npy file of initially unknown length."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

LENGTH_PLACEHOLDER = 2**62
"""Length that no file reaches, to reserve space in the header that is written first."""


class TokenWriter:
    """Writer that appends ids to an open .npy file; `finish` completes the file."""

    def __init__(self, file: BinaryIO, *, vocab_size: int) -> None:
        self._file = file
        self.dtype = np.dtype(
            "<u2" if vocab_size <= 2**16 else "<u4" if vocab_size <= 2**32 else "<u8"
        )
        self.count = 0
        self._write_header(LENGTH_PLACEHOLDER)
        self._header_size = file.tell()

    def write(self, ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Append ids."""
        block = np.asarray(ids, dtype=self.dtype)
        self._file.write(block.tobytes())
        self.count += len(block)

    def finish(self) -> None:
        """Write the true length into the header and flush everything to disk."""
        self._file.seek(0)
        self._write_header(self.count)
        assert self._file.tell() == self._header_size
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write_header(self, length: int) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a machine crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
