"""Data loader whose global batches do not depend on the layout of ranks."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.dataloader_workers import (
    DataloaderWorkers,
    FindBatchIndices,
    stack_samples,
)
from titanrun.components.data.indexed_dataset import IndexedDataset, SampleIndex, SampleRequest
from titanrun.components.data.sample_order import (
    SampleOrder,
    compute_epoch_order,
    get_epoch_size,
    get_total_size,
)
from titanrun.config.nested_problems import nest_problems
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, problem_error

log = logging.getLogger(__name__)


class DataloaderExhaustedError(Exception):
    """No full global batch is left.

    Not a StopIteration, which an enclosing generator would swallow.
    """


class DistributedDataLoader:
    """Loader of one data-parallel rank's share of each global batch.

    The stream of samples is epoch after epoch, each in its own order (sample_order.py). Global
    batch s is samples s*G to (s+1)*G of the stream, for a global batch size G, and may span epochs.
    Rank r takes the r-th of dp_size equal, consecutive shares. So the samples of a global batch
    depend on the data, the seed and G, never on dp_size, and seeking takes no time. `config_path`
    is the path of the dataset in the recipe, for problems with it.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        *,
        seed: int,
        shuffle: bool,
        repeat: bool,
        global_batch_size: int,
        dp_rank: int = 0,
        dp_size: int = 1,
        config_path: DataPath = (),
        config: DataLoaderConfig | None = None,
    ) -> None:
        assert global_batch_size % dp_size == 0 and dp_rank < dp_size, (
            f"{global_batch_size:,} sequences are not divisible by {dp_size} ranks"
        )
        self.dataset, self._config_path = dataset, config_path
        self._num_samples = get_epoch_size(dataset)
        self._end = find_stream_end(dataset, repeat=repeat, global_batch_size=global_batch_size)
        self.global_batch_size, self._seed, self._shuffles = global_batch_size, seed, shuffle
        self._local_batch_size = global_batch_size // dp_size
        self._local_start, self._position = dp_rank * self._local_batch_size, 0
        self._orders: dict[int, SampleOrder] = {}
        self._workers = create_dataloader_workers(dataset, self._find_batch_indices, config)
        self._config = config

    def next_samples(self) -> NDArray[Any]:
        """Return this rank's samples of the next global batch, [samples, seq_len + 1].

        Raises:
            DataloaderExhaustedError: If the data does not repeat and no full global batch is left.
            ProblemsFound: If the file changed.
        """
        if not self.has_next():
            raise DataloaderExhaustedError
        with nest_problems(self._config_path):
            # check before, because a truncated file would end the process, and after, so that the
            # run never trains on data that changed meanwhile
            self.dataset.check()
            rows = self._read_batch()
            self.dataset.check()
        before = self._position
        self._position += self.global_batch_size
        if (
            self._config is not None
            and not self._config.persistent_workers
            and self._crosses_epoch(before, self._position)
        ):
            self.close()
        return rows

    def next_indices(self) -> list[int]:
        """Return this rank's sample indices of the next global batch and skip the batch.

        For data that is not read as arrays.
        """
        if not self.has_next():
            raise DataloaderExhaustedError
        self._position += self.global_batch_size
        return self.last_indices()

    @property
    def num_samples(self) -> int:
        """Number of samples of one epoch."""
        return self._num_samples

    def has_next(self) -> bool:
        """Return whether another full global batch is left."""
        return self._has_batch_at(self._position)

    def last_indices(self) -> list[int]:
        """Return the indices of the last batch of `next_samples`, empty before the first."""
        last = self._position - self.global_batch_size
        return [index for _, index in self._iter_epoch_indices(last)] if last >= 0 else []

    def close(self) -> None:
        """Stop the worker processes."""
        if self._workers is not None:
            self._workers.close()

    def collect_metrics(self) -> dict[str, float]:
        """Return no metrics: an index is read in no time."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream and the fingerprint of the data, for JSON."""
        return {
            "rows_read": self._position,
            "rows": self._num_samples,
            "fingerprint": self.dataset.fingerprint,
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, allows_other_data: bool = False
    ) -> None:
        """Seek to the position of `state_dict`.

        Other data is a data problem, or with `allows_other_data` starts at its beginning.
        """
        if state_dict["fingerprint"] == self.dataset.fingerprint:
            self._position = int(state_dict["rows_read"])
            return
        # a stream has no number of sequences
        rows = state_dict.get("rows")
        message = (
            "the checkpoint was trained on a stream, not on data in an index"
            if rows is None
            else f"the checkpoint was trained on other data: {rows:,} sequences then, "
            f"{self._num_samples:,} now"
        )
        if rows == self._num_samples:
            message = (
                "the checkpoint was trained on other data: "
                f"{pluralize(self._num_samples, 'sequence')} as now, but with other token ids"
            )
        if not allows_other_data:
            hint = (
                "restore the data of the run, or add training.dataset to checkpoint.allow_change "
                "to start with the new data"
            )
            raise problem_error("data", message, path=(), hint=hint)
        log.warning("%s; starting with the new data", message)
        self._position = 0

    def _read_batch(self) -> NDArray[Any]:
        """Return this rank's samples at the current position."""
        batch, rest = divmod(self._position, self.global_batch_size)
        if self._workers is None or rest:
            return stack_samples(self.dataset, self._get_indices(self._position))
        return self._workers.get_batch(batch)

    def _crosses_epoch(self, before: int, after: int) -> bool:
        """Return whether an epoch ends between two positions."""
        return before // self._num_samples != after // self._num_samples

    def _find_batch_indices(self, batch: int) -> list[SampleIndex] | None:
        """Return this rank's sample indices in global batch `batch`, None after the end."""
        position = batch * self.global_batch_size
        return self._get_indices(position) if self._has_batch_at(position) else None

    def _has_batch_at(self, position: int) -> bool:
        """Return whether the stream has a full global batch at a position."""
        return self._end is None or position + self.global_batch_size <= self._end

    def _get_indices(self, position: int) -> list[SampleIndex]:
        """Return this rank's sample indices of the global batch that starts at `position`.

        They include sample keys if the dataset draws random numbers for its samples.
        """
        if not getattr(self.dataset, "needs_sample_keys", False):
            return [index for _, index in self._iter_epoch_indices(position)]
        return [
            SampleRequest(index, derive_sample_key(self._seed, epoch, index))
            for epoch, index in self._iter_epoch_indices(position)
        ]

    def _iter_epoch_indices(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield epoch and sample index of this rank in the global batch at `position`."""
        start = position + self._local_start
        yield from self._iter_range(start, start + self._local_batch_size)

    def _iter_range(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield epoch and sample index of the samples from `start` to `end` of the stream."""
        while start < end:
            epoch, offset = divmod(start, self._num_samples)
            count = min(end - start, self._num_samples - offset)
            yield from (
                (epoch, index)
                for index in self._get_epoch_order(epoch)[offset : offset + count].tolist()
            )
            start += count

    def _get_epoch_order(self, epoch: int) -> SampleOrder:
        """Return the order of the samples in an epoch.

        Two orders are kept: worker processes read ahead of the epoch in training.
        """
        if epoch not in self._orders:
            self._orders = {
                number: order for number, order in self._orders.items() if abs(number - epoch) == 1
            }
            self._orders[epoch] = compute_epoch_order(
                self.dataset, epoch, seed=self._seed if self._shuffles else None
            )
        return self._orders[epoch]


def create_dataloader_workers(
    dataset: IndexedDataset, find_batch_indices: FindBatchIndices, config: DataLoaderConfig | None
) -> DataloaderWorkers | None:
    """Create the worker processes of the recipe, or return None if it has none.

    They start at the first batch.
    """
    if config is None or config.num_workers in (0, "auto"):
        return None
    assert config.num_workers != "auto"
    return DataloaderWorkers(
        dataset,
        find_batch_indices,
        num_workers=config.num_workers,
        prefetch_factor=config.prefetch_factor,
    )


def derive_sample_key(seed: int, epoch: int, index: int) -> int:
    """Return the random seed of a sample in an epoch: 63 bits, equal on all ranks."""
    return int(np.random.SeedSequence([seed, epoch, index]).generate_state(1, np.uint64)[0] >> 1)


def find_stream_end(dataset: IndexedDataset, *, repeat: bool, global_batch_size: int) -> int | None:
    """Return the number of samples after which the data ends, or None.

    Raises:
        ProblemsFound: A data problem if there is no sample, or no full global batch before the end.
    """
    num_samples = get_epoch_size(dataset)
    if num_samples == 0:
        raise problem_error(
            "data", "the data has no sequences", hint="use more data or a smaller seq_len"
        )
    end = get_total_size(dataset) if repeat else num_samples
    if end is None or end >= global_batch_size:
        return end
    message = (
        f"the data has {pluralize(end, 'sequence')}, but one global batch needs {global_batch_size}"
    )
    hint = "use more data, a smaller global batch, or more epochs of the sources"
    if not repeat:
        message += " and repeat is off"
        hint = "use more data, a smaller global batch, or repeat: true"
    raise problem_error("data", message, hint=hint)
