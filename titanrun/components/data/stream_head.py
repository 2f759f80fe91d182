"""First sequences of a stream in an index, for validation, which reads the same ones each time."""

import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.components.data.config import DatasetConfig, DocumentsConfig, MixtureDatasetConfig
from titanrun.components.data.damaged_files import (
    DamagedFiles,
    check_damaged_files,
    open_record_file,
)
from titanrun.components.data.document_reader import BadRecordPolicy
from titanrun.components.data.document_split import DocumentFilter, Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.lane_plan import StreamPlan
from titanrun.components.data.lane_records import StreamFiles
from titanrun.components.data.lane_rows import BAD_SHARE_RECORDS
from titanrun.components.data.mixture_dataset import build_mixture_dataset
from titanrun.components.data.record_readers import (
    BadRecordHandler,
    LocatedRecord,
    raise_bad_record,
)
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_config import StreamFields
from titanrun.components.data.stream_sources import SourceFiles, get_source_name, plan_stream
from titanrun.components.data.token_index import DocumentCounts, IndexSpec, open_or_build_index
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.data.window_encoders import WindowEncoder, load_encoder
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound, problem_error

log = logging.getLogger(__name__)

HEAD_VERSION = 1
PROGRESS_RECORDS = 100_000
"""Records between two log lines about the search for held-out documents."""


def build_stream_head(
    config: DatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    rows: int | None,
    holdout: Holdout | None = None,
    retries: RetryPolicy,
) -> IndexedDataset:
    """Build the first `rows` sequences of a stream, or of each stream of a mixture.

    Documents are read in the order of the files, without shuffling. If `rows` is None, all are.

    Raises:
        ProblemsFound: A data problem with a path relative to the config.
    """
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "sample_length": sample_length,
        "cache_folder": cache_folder,
        "holdout": holdout,
    }
    if isinstance(config, MixtureDatasetConfig):
        return build_mixture_dataset(
            config,
            **options,
            open_stream=partial(build_stream_head, **options, rows=rows, retries=retries),
        )
    assert isinstance(config, StreamFields)
    plan, files = plan_stream(config, retries), SourceFiles(retries)
    head = StreamHead(config, plan, files, sample_length=sample_length, rows=rows)
    return head.open(tokenizer, cache_folder, holdout)


class StreamHead:
    """First sequences of one stream.

    Args:
        config: Config of the stream.
        plan: Files of the stream.
        files: Where they are read.
        sample_length: Length of a sequence.
        rows: Number of sequences that are needed, None for all.
    """

    def __init__(
        self,
        config: StreamFields,
        plan: StreamPlan,
        files: StreamFiles,
        *,
        sample_length: int,
        rows: int | None,
    ) -> None:
        self._config: Any = config
        self._name = get_source_name(config)
        self._plan, self._files = plan, files
        self._sample_length, self._rows = sample_length, rows
        self._num_read = 0

    def open(
        self, tokenizer: Tokenizer, cache_folder: Path, holdout: Holdout | None
    ) -> IndexedDataset:
        """Open the sequences, tokenized unless they are in the folder."""
        encoder = load_encoder(self._config, tokenizer, holdout)
        length = None if self._rows is None else [self._rows, self._sample_length]
        settings = json.dumps(["stream head", HEAD_VERSION, encoder.settings, length])
        spec = IndexSpec(
            tokenizer.fingerprint,
            settings,
            encoder.token_bound,
            partial(self._write, encoder, holdout),
        )
        index = open_or_build_index(
            (),
            [self._plan.digest],
            source=self._name,
            spec=spec,
            cache_folder=cache_folder,
        )
        return encoder.build_dataset(index, self._sample_length, self._name)

    def _write(
        self,
        encoder: WindowEncoder,
        holdout: Holdout | None,
        paths: Sequence[Path],
        writer: TokenWriter,
        chosen: DocumentFilter | None,
    ) -> DocumentCounts:
        """Write the documents until they fill the sequences."""
        bad = BadRecordPolicy(self._config) if isinstance(self._config, DocumentsConfig) else None
        records = self._iter_records(encoder, bad or raise_bad_record)
        count, filled = 0, 0.0
        for tokens in encoder.encode(records, bad or raise_bad_record):
            writer.write(tokens)
            count += 1
            filled += encoder.count_sequences(tokens, self._sample_length)
            if self._rows is not None and filled >= self._rows:
                break
        if bad is not None and bad.num_skipped > self._config.max_bad_share * BAD_SHARE_RECORDS:
            # as in a lane, where few records say nothing about the share
            bad.check(self._num_read - bad.num_skipped)
        if not count and holdout is not None:
            raise problem_error(
                "data",
                f"no document of '{self._name}' is held out by validation.holdout {holdout.size:g}",
                path=("path",),
                hint="set a larger validation.holdout, or name more files",
            )
        return DocumentCounts(count, skipped=0 if bad is None else bad.num_skipped)

    def _iter_records(
        self, encoder: WindowEncoder, on_bad_record: BadRecordHandler
    ) -> Iterator[LocatedRecord]:
        """Yield the records of all files in order, and log the progress."""
        self._num_read = 0
        damaged = DamagedFiles() if self._config.skips_bad_files else None
        for index in range(len(self._plan.files)):
            file = open_record_file(self._files, self._plan, index, encoder.required, damaged)
            for raw in file.iter_from(0, 0):
                self._num_read += 1
                if self._num_read % PROGRESS_RECORDS == 0:
                    log.info("%s: %d records read for validation", self._name, self._num_read)
                try:
                    record = file.parse(raw)
                except ProblemsFound as error:
                    on_bad_record(error)
                    continue
                yield record
            if damaged is not None:
                check_damaged_files(
                    damaged.records, self._plan, max_files=self._config.max_bad_files, path=()
                )
