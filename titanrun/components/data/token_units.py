"""Indexes that are built in units: each span of a file by itself, by any process or machine.

The tokens of a unit depend on its bytes, the tokenizer and the settings only. An index of units is
their list in the order of the files, and reads like the index that one process builds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from titanrun.components.data.config import FilesConfig
from titanrun.components.data.document_index import (
    READER,
    make_document_spec,
    write_reader_documents,
)
from titanrun.components.data.document_split import DocumentFilter, Holdout
from titanrun.components.data.file_spans import FileSpan, describe_span, list_file_spans
from titanrun.components.data.spec.data_files import (
    SourceFile,
    describe_files,
    is_file_unchanged,
    resolve_data_files,
)
from titanrun.components.data.token_cache import (
    FORMAT,
    UNITS,
    IndexRecord,
    UnitEntry,
    compute_index_key,
    create_cache_folder,
    find_complete_index,
    get_file_hashes_path,
    get_index_record_path,
    read_file_hashes,
    write_file_hashes,
    write_index_record,
)
from titanrun.components.data.token_file import summarize_stream
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    check_has_documents,
    open_or_build_index,
    open_units,
)
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error

MAX_NAMES_LISTED = 3


@dataclass(frozen=True, slots=True)
class UnitBuild:
    """Documents of a dataset, or one side of their split, that are tokenized in units.

    Args:
        config: Dataset.
        holdout: Side of the split.
        cache_folder: Folder of the indexes.
    """

    config: FilesConfig
    holdout: Holdout | None
    cache_folder: Path

    def list_spans(self) -> list[FileSpan]:
        """Return the spans of the files of the dataset in order."""
        return list_file_spans(resolve_data_files(self.config.path))

    def build_unit(self, span: FileSpan, tokenizer: Tokenizer) -> None:
        """Tokenize a span, unless it is tokenized."""
        described = self._describe(span)
        config = self._get_unit_config()
        open_or_build_index(
            (described,),
            hash_span(span, described),
            source=span.name,
            spec=make_span_spec(config, span, tokenizer, self.holdout),
            cache_folder=self.cache_folder / UNITS,
        )

    def find_unit(self, span: FileSpan, tokenizer: Tokenizer) -> tuple[str, IndexRecord] | None:
        """Return the name and the record of the unit of a span, None if it is not tokenized."""
        folder = self.cache_folder / UNITS
        if not get_file_hashes_path(folder, span.name).exists():
            return None
        spec = make_span_spec(self._get_unit_config(), span, tokenizer, self.holdout)
        key = compute_index_key(
            spec.all_settings,
            spec.tokenizer_fingerprint,
            hash_span(span, self._describe(span)),
        )
        record = find_complete_index(folder, key)
        return None if record is None else (key, record)

    def is_complete(self, tokenizer: Tokenizer) -> bool:
        """Return whether the whole index exists, as far as that is known without reading files."""
        files = resolve_data_files(self.config.path)
        known = read_file_hashes(get_file_hashes_path(self.cache_folder, self.config.path))
        described = [known[str(file)] for file in files if str(file) in known]
        unchanged = [
            file for file in described if file.mtime_ns is not None and is_file_unchanged(file)
        ]
        if len(unchanged) < len(files):
            return False
        spec = make_document_spec(self.config, tokenizer, self.holdout)
        key = compute_index_key(
            spec.all_settings,
            spec.tokenizer_fingerprint,
            [file.sha256 for file in unchanged],
        )
        return find_complete_index(self.cache_folder, key) is not None

    def finish(self, tokenizer: Tokenizer) -> None:
        """Write the index of all units.

        Raises:
            ProblemsFound: A data problem if units are missing, or if there are no documents.
        """
        spans = self.list_spans()
        found = [self.find_unit(span, tokenizer) for span in spans]
        missing = [span for span, unit in zip(spans, found, strict=True) if unit is None]
        if missing:
            raise missing_units_error(missing, len(spans))
        units = self._select_first_units(
            spans, [unit for unit in found if unit is not None], tokenizer
        )
        records = [record for _, record in units]
        counts = sum_counts(records)
        bad = import_module(READER).BadRecordPolicy(self.config)
        bad.num_skipped = counts.skipped
        bad.check(counts.documents + counts.other_side + counts.left_out)
        spec = make_document_spec(self.config, tokenizer, self.holdout)
        check_has_documents(counts, spec, self.config.path)
        self._write_record(spec, counts, units, self._describe_files(records))

    def _get_unit_config(self, max_documents: int | None = None) -> FilesConfig:
        """Return the settings of units: what concerns all documents is checked at the end."""
        return type(self.config).model_validate(
            {**dict(self.config), "max_documents": max_documents, "max_bad_share": 1.0}
        )

    def _describe(self, span: FileSpan) -> SourceFile:
        """Return the file of a span with the hash of the span, which is stored."""
        folder = self.cache_folder / UNITS
        create_cache_folder(folder)
        path = get_file_hashes_path(folder, span.name)
        known = read_file_hashes(path).get(str(span.file))
        described = describe_span(span, known)
        if described != known:
            write_file_hashes(path, span.name, [described])
        return described

    def _select_first_units(
        self,
        spans: Sequence[FileSpan],
        units: Sequence[tuple[str, IndexRecord]],
        tokenizer: Tokenizer,
    ) -> list[tuple[str, IndexRecord]]:
        """Return the units of the first `max_documents` documents: the last one is cut."""
        left = self.config.max_documents
        chosen: list[tuple[str, IndexRecord]] = []
        for span, unit in zip(spans, units, strict=True):
            count = unit[1].documents + unit[1].other_side
            if left is not None and count >= left:
                cut = replace(self, config=self._get_unit_config(left))
                return [*chosen, cut._build_cut_unit(span, tokenizer)]
            chosen.append(unit)
            left = None if left is None else left - count
        return chosen

    def _build_cut_unit(self, span: FileSpan, tokenizer: Tokenizer) -> tuple[str, IndexRecord]:
        """Return the unit of the first `max_documents` documents of a span."""
        described = self._describe(span)
        index = open_or_build_index(
            (described,),
            hash_span(span, described),
            source=span.name,
            spec=make_span_spec(self.config, span, tokenizer, self.holdout),
            cache_folder=self.cache_folder / UNITS,
        )
        return index.path.stem, index.record

    def _describe_files(self, records: Sequence[IndexRecord]) -> list[SourceFile]:
        """Return the files of the dataset with their hashes, as far as possible from units."""
        path = get_file_hashes_path(self.cache_folder, self.config.path)
        known = read_file_hashes(path)
        for record in records:
            if record.source == record.files[0].path:
                known[record.source] = record.files[0]
        described = describe_files(resolve_data_files(self.config.path), known)
        write_file_hashes(path, self.config.path, described)
        return described

    def _write_record(
        self,
        spec: IndexSpec,
        counts: DocumentCounts,
        units: Sequence[tuple[str, IndexRecord]],
        files: Sequence[SourceFile],
    ) -> None:
        """Write the record of the index, which completes it."""
        key = compute_index_key(
            spec.all_settings, spec.tokenizer_fingerprint, [file.sha256 for file in files]
        )
        entries = tuple(UnitEntry(name, one.tokens, one.size) for name, one in units)
        record = IndexRecord(
            format=FORMAT,
            source=self.config.path,
            tokenizer=spec.tokenizer_fingerprint,
            settings=spec.all_settings,
            files=tuple(files),
            documents=counts.documents,
            left_out=counts.left_out,
            skipped=counts.skipped,
            tokens=sum(entry.tokens for entry in entries),
            tokens_file="",
            size=sum(entry.size for entry in entries),
            digest="",
            max_token_id=0,
            other_side=counts.other_side,
            units=entries,
        )
        tokens = open_units(self.cache_folder, key, record).tokens
        summary = summarize_stream(tokens, (len(tokens),), source=self.config.path)
        write_index_record(
            get_index_record_path(self.cache_folder, key),
            replace(record, digest=summary.digest, max_token_id=summary.max_token_id),
        )


def make_span_spec(
    config: FilesConfig, span: FileSpan, tokenizer: Tokenizer, holdout: Holdout | None
) -> IndexSpec:
    """Return the content of the unit of a span."""
    spec = make_document_spec(config, tokenizer, holdout, is_unit=True)
    if span.is_whole:
        return spec
    return replace(spec, write_tokens=partial(write_span_documents, config, tokenizer, span))


def write_span_documents(
    config: FilesConfig,
    tokenizer: Tokenizer,
    span: FileSpan,
    files: Sequence[Path],
    writer: TokenWriter,
    chosen: DocumentFilter | None,
) -> DocumentCounts:
    """Write the documents of a part of a file."""
    return write_reader_documents(
        config, tokenizer, writer, lambda reader: reader.iter_span_documents(span), chosen
    )


def hash_span(span: FileSpan, described: SourceFile) -> list[str]:
    """Return the content of a span for the key of its unit."""
    return [described.sha256] if span.is_whole else [described.sha256, f"{span.groups}"]


def sum_counts(records: Sequence[IndexRecord]) -> DocumentCounts:
    """Return the counts of all units."""
    return DocumentCounts(
        sum(record.documents for record in records),
        sum(record.left_out for record in records),
        sum(record.skipped for record in records),
        sum(record.other_side for record in records),
    )


def missing_units_error(missing: Sequence[FileSpan], total: int) -> ProblemsFound:
    """Build the problem of an index of which units are not tokenized."""
    named = ", ".join(f"'{span.name}'" for span in missing[:MAX_NAMES_LISTED])
    more = len(missing) - MAX_NAMES_LISTED
    return problem_error(
        "data",
        f"{len(missing):,} of {pluralize(total, 'unit')} are not tokenized: {named}"
        + (f" and {more:,} more" if more > 0 else ""),
        path=("path",),
        hint="repeat the parts that did not end, or run titanrun data build with --workers N: what "
        "is tokenized stays",
    )
