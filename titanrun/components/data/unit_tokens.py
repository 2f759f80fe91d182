"""Tokens of an index that consists of units, as one sequence of ids.

The units stay in files of their own: an index of terabytes is not copied.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.file_change_guard import (
    RESTORE_DATA_HINT,
    FileState,
    find_file_state,
)
from titanrun.config.problems import problem_error

if TYPE_CHECKING:
    from titanrun.components.data.token_cache import UnitEntry
    from titanrun.components.data.token_index import TokenIndex

MAX_MAPPED_UNITS = 4096
"""Units that are mapped at a time: a process may map only some ten thousand files."""


class UnitTokens:
    """Token ids of consecutive units, each of which is opened when it is first read.

    Args:
        units: Units in order, at least one.
        open_unit: Opens a unit, and raises a problem if it is damaged.
    """

    def __init__(
        self,
        units: Sequence["UnitEntry"],
        *,
        open_unit: Callable[["UnitEntry"], "TokenIndex"],
    ) -> None:
        self._units, self._open_unit = units, open_unit
        self._ends = np.cumsum([unit.tokens for unit in units], dtype=np.int64)
        self._opened: OrderedDict[int, tuple[TokenIndex, FileState | None]] = OrderedDict()

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """Type of the ids."""
        return self._get_unit(0).tokens.dtype

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, span: slice) -> NDArray[np.integer]:
        """Return consecutive ids.

        Raises:
            ProblemsFound: A data problem if a block is not what was written.
        """
        start, stop, step = span.indices(len(self))
        assert step == 1
        parts = []
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            first = int(self._ends[number]) - self._units[number].tokens
            parts.append(self._get_unit(number).tokens[start - first : stop - first])
            start = int(self._ends[number])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def check(self) -> None:
        """Raise a data problem if a unit that was read is gone; check it again if it changed."""
        for number, (index, state) in list(self._opened.items()):
            now = find_file_state(index.path)
            if now is None:
                raise problem_error(
                    "data",
                    f"'{index.path}' is gone while the run reads it",
                    path=("path",),
                    hint=RESTORE_DATA_HINT,
                )
            if now != state:
                index.tokens.check_again()
                self._opened[number] = (index, now)

    def check_again(self) -> None:
        """Check every block again when it is next read."""
        self._opened.clear()

    def _get_unit(self, number: int) -> "TokenIndex":
        if number not in self._opened:
            index = self._open_unit(self._units[number])
            self._opened[number] = (index, find_file_state(index.path))
            if len(self._opened) > MAX_MAPPED_UNITS:
                self._opened.popitem(last=False)
        self._opened.move_to_end(number)
        return self._opened[number][0]
