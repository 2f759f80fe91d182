"""Sequences of one lane of a stream, from any of them on.

The state of a lane is a cursor: a few integers that name the next token, or the next sequence of a
window. Everything else is computed again from the files.
"""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chunked_sequences import split_channels
from titanrun.components.data.damaged_files import DamagedFiles
from titanrun.components.data.lane_plan import StreamPlan, order_window
from titanrun.components.data.lane_records import StreamFiles
from titanrun.components.data.lane_windows import (
    LaneSettings,
    LocatedRawRecord,
    Window,
    WindowReader,
    WindowStart,
)
from titanrun.components.data.packed_sequences import build_packed_sequence
from titanrun.components.data.record_readers import LocatedRecord
from titanrun.components.data.window_encoders import WindowEncoder
from titanrun.components.data.window_prefetch import WindowPrefetcher
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error

log = logging.getLogger(__name__)

MAX_LOGGED_BAD_RECORDS = 5
"""Records of a stream that cannot be read which a process logs."""
BAD_SHARE_RECORDS = 100_000
"""Records of a lane of which a share may be unreadable. Both counts are halved when it is
reached, so that it is always about the last ones."""


@dataclass(frozen=True, slots=True)
class LaneCursor:
    """Place in a lane, after `rows` sequences.

    The window that holds the next token begins at `epoch` to `place`, as in `WindowStart`.
    `document` and `token` are the next token of its shuffled documents, or `document` is the number
    of its sequences that were read. `documents` counts those that the lane has read, `read` and
    `bad` the recent records before the window and those among them that cannot be read, `all_bad`
    those of the whole run.
    """

    rows: int = 0
    epoch: int = 0
    turn: int = 0
    record: int = 0
    offset: int = 0
    window: int = 0
    place: int = 0
    document: int = 0
    token: int = 0
    documents: int = 0
    read: int = 0
    bad: int = 0
    all_bad: int = 0

    @property
    def start(self) -> WindowStart:
        """Place of the window."""
        return WindowStart(self.epoch, self.turn, self.record, self.offset, self.window, self.place)

    def move_to(self, start: WindowStart, **changes: int) -> "LaneCursor":
        """Return a cursor in the window at `start`."""
        place: dict[str, Any] = {one.name: getattr(start, one.name) for one in fields(start)}
        return replace(self, **place, **changes)

    def to_list(self) -> list[int]:
        """Return the numbers in the order of CURSOR_FIELDS."""
        return [getattr(self, name) for name in CURSOR_FIELDS]


CURSOR_FIELDS = tuple(one.name for one in fields(LaneCursor))


@dataclass(frozen=True, slots=True)
class LaneSequence:
    """Sequence of a lane, and the cursor after it."""

    tokens: NDArray[np.int64]
    cursor: LaneCursor


@dataclass(frozen=True, slots=True)
class WindowDocument:
    """Tokens of a document, and the cursor at its first token."""

    tokens: NDArray[np.integer]
    cursor: LaneCursor


@dataclass(slots=True)
class BadRecordLimit:
    """Handling of records that cannot be read: the largest share, None to raise the first one.

    The first ones that are left out are logged.
    """

    max_share: float | None = None
    num_logged: int = 0

    def check(self, cursor: LaneCursor, error: ProblemsFound) -> None:
        """Raise the problem of a record if there are too many; `cursor` counts them."""
        if self.max_share is None:
            raise error
        if self.num_logged < MAX_LOGGED_BAD_RECORDS:
            self.num_logged += 1
            log.warning("skipped: %s", error.problems[0].message)
        if cursor.bad > self.max_share * BAD_SHARE_RECORDS:
            message = (
                f"{cursor.bad} records of a lane cannot be read, more than max_bad_share "
                f"{self.max_share:g} allows of {BAD_SHARE_RECORDS:,}; the last one: "
                f"{error.problems[0].message}"
            )
            raise problem_error("data", message, path=("max_bad_share",), hint="repair the files")


class LaneReader:
    """Sequences of one lane, as a pure function of the cursor."""

    def __init__(
        self,
        plan: StreamPlan,
        files: StreamFiles,
        settings: LaneSettings,
        encoder: WindowEncoder,
        *,
        sample_length: int,
        bad_records: BadRecordLimit | None = None,
        damaged: DamagedFiles | None = None,
        prefetcher: WindowPrefetcher | None = None,
    ) -> None:
        self._windows = WindowReader(plan, files, settings, damaged)
        # a file that is found damaged early would be left out early, at a time that varies
        self._prefetcher = prefetcher if damaged is None else None
        self._settings, self._encoder = settings, encoder
        self._sample_length = sample_length
        self._bad_records = bad_records or BadRecordLimit()
        # only channels can say that a token does not count
        self._has_channels = encoder.packing != "windows" or not settings.repeats

    def iter_sequences(self, cursor: LaneCursor) -> Iterator[LaneSequence]:
        """Yield the sequences after a cursor, without end if the stream repeats.

        Raises:
            ProblemsFound: A data problem if a file or record cannot be read, or if an epoch of the
                lane has no sequence.
        """
        windows: Iterator[Window] = self._windows.iter_windows(cursor.start)
        if self._prefetcher is not None:
            windows = self._prefetcher.read_ahead(windows)
        if self._encoder.packing is None:
            return self._iter_window_sequences(cursor, windows)
        return self._iter_continuous_sequences(cursor, windows)

    def _iter_continuous_sequences(
        self, cursor: LaneCursor, windows: Iterator[Window]
    ) -> Iterator[LaneSequence]:
        """Yield sequences of documents that continue across sequences, windows and epochs."""
        size = self._sample_length
        pending: deque[WindowDocument] = deque()
        count, after = 0, cursor
        for document in self._iter_documents(cursor, windows):
            pending.append(document)
            count += len(document.tokens)
            after = replace(
                document.cursor,
                document=document.cursor.document + 1,
                documents=document.cursor.documents + 1,
                token=0,
            )
            while count >= size:
                taken = take_tokens(pending, size)
                count -= size
                rows = cursor.rows + 1
                cursor = replace(pending[0].cursor if pending else after, rows=rows)
                yield LaneSequence(self._build_continuous(taken), cursor)
        # the end of a stream that does not repeat: a single token has no label
        if count > 1:
            tokens = self._build_continuous(take_tokens(pending, count))
            yield LaneSequence(tokens, replace(after, rows=cursor.rows + 1))

    def _build_continuous(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a sequence of consecutive tokens, padded if there are too few."""
        if not self._has_channels:
            return tokens
        channels = (
            np.stack([tokens, np.ones_like(tokens), np.arange(len(tokens))])
            if self._encoder.packing == "windows"
            else split_channels(tokens)
        )
        padding = self._sample_length - len(tokens)
        return np.concatenate([channels, build_padding(3, padding)], axis=1)

    def _iter_documents(
        self, cursor: LaneCursor, windows: Iterator[Window]
    ) -> Iterator[WindowDocument]:
        """Yield the documents from the one at a cursor on, the first one without its read tokens.

        Empty ones are left out.
        """
        skipped, token = cursor.document, cursor.token
        place = replace(cursor, documents=cursor.documents - skipped, token=0)
        check = EpochCheck(self._settings, cursor)
        for window in windows:
            check.start_window(window.start)
            place, number = place.move_to(window.start, document=0), 0
            counted = RecordCounts(self._bad_records, place)
            for tokens in self._iter_window_tokens(window, counted):
                check.was_found = True
                place = replace(place, document=number, documents=place.documents + 1)
                number += 1
                if number <= skipped:
                    continue
                at = replace(place, token=token, documents=place.documents - 1)
                yield WindowDocument(tokens[token:], at)
                token = 0
            skipped, place = 0, counted.finish(place, len(window.records))
        check.finish()

    def _iter_window_sequences(
        self, cursor: LaneCursor, windows: Iterator[Window]
    ) -> Iterator[LaneSequence]:
        """Yield sequences of whole documents of one window, then of the next."""
        skipped, check = cursor.document, EpochCheck(self._settings, cursor)
        place, is_first = cursor, skipped > 0
        for window in windows:
            check.start_window(window.start)
            counted = RecordCounts(self._bad_records, place)
            documents = list(self._iter_window_tokens(window, counted))
            # a cursor within a window already counts its documents
            read = place.documents + (0 if is_first else len(documents))
            place, is_first = place.move_to(window.start, document=0, documents=read), False
            tokens = join_documents(documents, has_weights=self._encoder.has_weights)
            sequences = self._encoder.plan_sequences(tokens, self._sample_length)
            for number, spans in enumerate(sequences):
                check.was_found = True
                if number < skipped:
                    continue
                place = replace(place, rows=place.rows + 1, document=number + 1)
                yield LaneSequence(
                    build_packed_sequence(
                        tokens,
                        spans,
                        sample_length=self._sample_length,
                        has_weights=self._encoder.has_weights,
                    ),
                    place,
                )
            skipped, place = 0, counted.finish(place, len(window.records))
        check.finish()

    def _iter_window_tokens(
        self, window: Window, counted: "RecordCounts"
    ) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of the documents of a window in their shuffled order."""
        chosen, start = self._settings, window.start
        order = order_window(
            len(window.records),
            seed=chosen.seed,
            source=chosen.source,
            epoch=start.epoch,
            lane=chosen.lane,
            window=start.window,
        )
        records = (window.records[number] for number in order)
        encoded = self._encoder.encode(iter_parsed(records, counted), counted.on_bad_record)
        return (tokens for tokens in encoded if len(tokens))


class RecordCounts:
    """Records of a window that cannot be read, after those that a cursor counts."""

    def __init__(self, limit: BadRecordLimit, cursor: LaneCursor) -> None:
        self._limit, self._cursor = limit, cursor

    def on_bad_record(self, error: ProblemsFound) -> None:
        """Count a record that cannot be read, or raise its problem."""
        bad, all_bad = self._cursor.bad + 1, self._cursor.all_bad + 1
        self._cursor = replace(self._cursor, bad=bad, all_bad=all_bad)
        self._limit.check(self._cursor, error)

    def finish(self, cursor: LaneCursor, num_records: int) -> LaneCursor:
        """Return a cursor that counts the window too."""
        read, bad = self._cursor.read + num_records, self._cursor.bad
        if read >= BAD_SHARE_RECORDS:
            read, bad = read // 2, bad // 2
        return replace(cursor, read=read, bad=bad, all_bad=self._cursor.all_bad)


class EpochCheck:
    """Check that a lane finds something to train on in each epoch that it reads as a whole."""

    def __init__(self, settings: LaneSettings, cursor: LaneCursor) -> None:
        self._settings, self._epoch, self._num_windows = settings, cursor.epoch, 0
        # what an interrupted epoch has found before is not known, but that it has
        self.was_found = cursor != LaneCursor()

    def start_window(self, start: WindowStart) -> None:
        """Note the epoch of a window.

        Raises:
            ProblemsFound: A data problem if the epoch before it had nothing to train on.
        """
        if start.epoch != self._epoch:
            self.finish()
            self._epoch, self._num_windows, self.was_found = start.epoch, 0, False
        self._num_windows += 1

    def finish(self) -> None:
        """Raise the problem of an epoch without anything to train on."""
        if self.was_found:
            return
        lane = f"lane {self._settings.lane + 1} of {self._settings.num_lanes}"
        message = (
            f"{lane} finds nothing to train on in the {pluralize(self._num_windows, 'window')} "
            "of an epoch"
        )
        hint = "check the filters, or set streaming: false for data this small"
        raise problem_error("data", message, path=(), hint=hint)


def iter_parsed(
    records: Iterator[LocatedRawRecord], counted: RecordCounts
) -> Iterator[LocatedRecord]:
    """Yield records, parsed."""
    for record in records:
        try:
            parsed = record.file.parse(record.raw)
        except ProblemsFound as error:
            counted.on_bad_record(error)
            continue
        yield parsed


def take_tokens(pending: deque[WindowDocument], size: int) -> NDArray[np.int64]:
    """Remove the first `size` tokens of consecutive documents and return them."""
    parts = []
    while size:
        document = pending.popleft()
        part, rest = document.tokens[:size], document.tokens[size:]
        parts.append(part)
        size -= len(part)
        if len(rest):
            cursor = replace(document.cursor, token=document.cursor.token + len(part))
            pending.appendleft(WindowDocument(rest, cursor))
    return np.concatenate(parts).astype(np.int64)


def join_documents(
    documents: list[NDArray[np.integer]], *, has_weights: bool
) -> NDArray[np.integer]:
    """Return the tokens of consecutive documents, in the type that an index of them has."""
    dtype = np.uint64 if has_weights else np.uint32
    return np.concatenate([np.zeros(0, dtype), *(tokens.astype(dtype) for tokens in documents)])


def build_padding(num_channels: int, length: int) -> NDArray[np.int64]:
    """Return the channels of tokens that count nothing."""
    padding = np.zeros((num_channels, length), dtype=np.int64)
    padding[2] = np.arange(length)
    return padding
