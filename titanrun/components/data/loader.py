"""Deals rows to global batches and ranks, so that every layout of ranks trains on the same batches."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import DataLoaderConfig
from titanrun.components.data.loader_processes import LoaderProcesses, NumbersAt, stacked
from titanrun.components.data.rows import DrawnRow, Number, Rows
from titanrun.config.counted import counted
from titanrun.config.placed import placed
from titanrun.config.problems import DataPath, fail

log = logging.getLogger(__name__)


class DataExhausted(Exception):
    """The rows are used up: no full global batch is left. No StopIteration, which a generator on the way would swallow."""


class RowLoader:
    """The share of one data-parallel rank in each global batch.

    The stream of rows is epoch after epoch, each in its own order. Global batch s is rows s*G to (s+1)*G of the stream, for a
    global batch size G, and may span epochs; rank r takes the r-th of dp_size equal, consecutive shares. So the rows of a global
    batch depend on the data, the seed and G, never on dp_size, and going to a position takes no time. `place`: of the dataset in the
    recipe, for problems with it.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        seed: int,
        shuffle: bool,
        repeat: bool,
        global_batch_size: int,
        dp_rank: int = 0,
        dp_size: int = 1,
        place: DataPath = (),
        processes: DataLoaderConfig | None = None,
    ) -> None:
        assert global_batch_size % dp_size == 0 and dp_rank < dp_size, (
            f"{global_batch_size} rows cannot be dealt to {dp_size} ranks"
        )
        check_enough(len(rows), repeat=repeat, global_batch_size=global_batch_size)
        self.rows, self._place = rows, place
        self.global_batch_size = global_batch_size
        self._row_count = len(rows)
        self._repeats, self._seed, self._shuffles = repeat, seed, shuffle
        self._share = global_batch_size // dp_size
        self._share_start = dp_rank * self._share
        self._position = 0
        self._orders: dict[int, NDArray[np.integer]] = {}
        self._processes = loader_processes(rows, self._numbers_at, processes)
        self._loading = processes

    def next_rows(self) -> NDArray[Any]:
        """This rank's rows of the next global batch, one below the other: [rows, seq_len + 1] of tokens.

        Raises DataExhausted where the data is read only once and has no full global batch left, and ProblemsFound where the file changed.
        """
        if not self.has_next():
            raise DataExhausted
        with placed(self._place):
            # before: a file that was cut short would end the process; after: nothing that changed meanwhile is trained on
            self.rows.check()
            rows = self._read()
            self.rows.check()
        before = self._position
        self._position += self.global_batch_size
        if (
            self._loading is not None
            and not self._loading.persistent_workers
            and self._starts_again(before, self._position)
        ):
            self.close()
        return rows

    def next_numbers(self) -> list[int]:
        """The numbers of this rank's rows of the next global batch, which is passed over: for data that is not read as rows."""
        if not self.has_next():
            raise DataExhausted
        self._position += self.global_batch_size
        return self.last_numbers()

    @property
    def row_count(self) -> int:
        """Rows of one epoch."""
        return self._row_count

    def has_next(self) -> bool:
        """Whether there is another full global batch."""
        return self._repeats or self._position + self.global_batch_size <= self._row_count

    def last_numbers(self) -> list[int]:
        """The numbers, in the data, of the rows that `next_rows` gave last; empty before that."""
        last = self._position - self.global_batch_size
        return [index for _, index in self._places(last)] if last >= 0 else []

    def close(self) -> None:
        """End the processes that read ahead."""
        if self._processes is not None:
            self._processes.close()

    def state(self) -> dict[str, int | str]:
        """The position in the stream, and what data it is a position in, for JSON."""
        return {
            "rows_read": self._position,
            "rows": self._row_count,
            "fingerprint": self.rows.fingerprint,
        }

    def load_state(
        self, state: Mapping[str, int | str], *, other_data_allowed: bool = False
    ) -> None:
        """Go to the position of `state`; in other data, where that is allowed, to its beginning. Else that is a data problem."""
        if state["fingerprint"] == self.rows.fingerprint:
            self._position = int(state["rows_read"])
            return
        message = f"the checkpoint was trained on other data: {state['rows']} rows then, {self._row_count} now"
        if state["rows"] == self._row_count:
            message = f"the checkpoint was trained on other data: {counted(self._row_count, 'row')} as now, with other token ids"
        if not other_data_allowed:
            help = "give the run its data back, or name training.dataset in checkpoint.allow_change to begin with the new data"
            raise fail("data", message, path=(), help=help)
        log.warning("%s; beginning with the new data", message)
        self._position = 0

    def _read(self) -> NDArray[Any]:
        """This rank's rows at the position."""
        batch, rest = divmod(self._position, self.global_batch_size)
        if self._processes is None or rest:
            return stacked(self.rows, self._numbers(self._position))
        return self._processes.batch(batch)

    def _starts_again(self, before: int, after: int) -> bool:
        """Whether an epoch ends between two positions."""
        return before // self._row_count != after // self._row_count

    def _numbers_at(self, batch: int) -> list[Number] | None:
        """The numbers of this rank's rows in global batch `batch`; None where the data ends before it."""
        position = batch * self.global_batch_size
        return (
            self._numbers(position)
            if self._repeats or position + self.global_batch_size <= self._row_count
            else None
        )

    def _numbers(self, position: int) -> list[Number]:
        """The numbers of this rank's rows of the global batch that begins at `position`, with keys where something is drawn of rows."""
        if not getattr(self.rows, "are_drawn", False):
            return [index for _, index in self._places(position)]
        return [
            DrawnRow(index, key_of(self._seed, epoch, index))
            for epoch, index in self._places(position)
        ]

    def _places(self, position: int) -> Iterator[tuple[int, int]]:
        """Epochs and numbers of this rank's rows of the global batch that begins at `position`."""
        start = position + self._share_start
        end = start + self._share
        while start < end:
            epoch, offset = divmod(start, self._row_count)
            count = min(end - start, self._row_count - offset)
            yield from (
                (epoch, index)
                for index in self._epoch_order(epoch)[offset : offset + count].tolist()
            )
            start += count

    def _epoch_order(self, epoch: int) -> NDArray[np.integer]:
        """The order of the rows in an epoch. Two are kept: processes read ahead of the one that is trained on."""
        if epoch not in self._orders:
            self._orders = {
                number: order for number, order in self._orders.items() if abs(number - epoch) == 1
            }
            self._orders[epoch] = row_order(
                self._row_count, seed=self._seed if self._shuffles else None, epoch=epoch
            )
        return self._orders[epoch]


def loader_processes(
    rows: Rows, numbers_at: NumbersAt, config: DataLoaderConfig | None
) -> LoaderProcesses | None:
    """The processes that a recipe asks for, if it does; they start when the first batch is wanted."""
    if config is None or config.num_workers == 0:
        return None
    return LoaderProcesses(rows, numbers_at, count=config.num_workers, ahead=config.prefetch_factor)


def key_of(seed: int, epoch: int, index: int) -> int:
    """What the draws of a row in an epoch begin from: 63 bits, the same on whatever rank."""
    return int(np.random.SeedSequence([seed, epoch, index]).generate_state(1, np.uint64)[0] >> 1)


def row_order(count: int, *, seed: int | None, epoch: int) -> NDArray[np.integer]:
    """A permutation of `count` rows that depends on seed and epoch; without a seed the given order.

    Sorts random keys of PCG64: numpy promises that its raw numbers never change, which it does not for its shuffle.
    """
    dtype = np.uint32 if count <= 2**32 else np.int64
    if seed is None:
        return np.arange(count, dtype=dtype)
    keys = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(count)
    # stable: the other kinds order equal keys differently from one CPU to the next
    return np.argsort(keys, kind="stable").astype(dtype)


def check_enough(count: int, *, repeat: bool, global_batch_size: int) -> None:
    """Data that is read once must fill a global batch; data that repeats must have a row."""
    if count == 0:
        raise fail("data", "the data has no rows", help="use more data or a smaller seq_len")
    if not repeat and count < global_batch_size:
        message = f"the data has {counted(count, 'row')}, one global batch takes {global_batch_size}, and repeat is off"
        raise fail("data", message, help="use more data, a smaller global batch, or repeat: true")
