"""Documents of files that other software has tokenized, without a copy of them."""

import hashlib
import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.file_change_guard import UnchangedFiles
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.spec.tokenizer_digest import find_tokenizer_digest
from titanrun.components.data.token_file import TokenSummary, summarize_tokens
from titanrun.components.data.token_records import ID_FACTOR, IN_LOSS, STARTS_DOCUMENT
from titanrun.components.data.tokenized_files import OPENERS, TokenizedFile
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)


class FileTokens:
    """Token ids of several files one after another, as a TokenStream."""

    def __init__(self, files: Sequence[TokenizedFile]) -> None:
        self._files = [file.ids for file in files]
        self._ends = np.cumsum([len(ids) for ids in self._files], dtype=np.int64)
        self.dtype: np.dtype[np.integer] = np.result_type(*(ids.dtype for ids in self._files))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, span: slice) -> NDArray[np.integer]:
        """Return consecutive ids."""
        start, stop, _ = span.indices(len(self))
        first = int(np.searchsorted(self._ends, start, side="right"))
        parts = []
        for number in range(first, len(self._files)):
            begins = int(self._ends[number]) - len(self._files[number])
            if begins >= stop:
                break
            parts.append(self._files[number][max(start - begins, 0) : stop - begins])
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)


class DocumentTokens:
    """Ids of files encoded as in token_records.py when they are read.

    Args:
        ids: The ids of all files.
        starts: Start of each document that has a token, in tokens.
    """

    dtype: np.dtype[np.integer] = np.dtype(np.uint32)

    def __init__(self, ids: FileTokens, starts: NDArray[np.int64]) -> None:
        self._ids = ids
        self.document_starts = starts

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, span: slice) -> NDArray[np.integer]:
        """Return consecutive encoded tokens."""
        start, stop, _ = span.indices(len(self))
        codes = self._ids[start:stop].astype(np.uint32) * ID_FACTOR + IN_LOSS
        first, last = np.searchsorted(self.document_starts, (start, max(start, stop)))
        # no token precedes the first one of a document
        codes[self.document_starts[first:last] - start] += STARTS_DOCUMENT - IN_LOSS
        return codes


class TokenizedDocuments:
    """Documents of tokenized files, for packing: see `EncodedDocuments`.

    Args:
        files: The files, in order.
        source: The path in the recipe.
    """

    def __init__(self, files: Sequence[TokenizedFile], *, source: str) -> None:
        self.ids = FileTokens(files)
        offsets = np.cumsum([0, *(len(file.ids) for file in files)])
        ends = [file.ends + offset for file, offset in zip(files, offsets, strict=False)]
        starts = np.concatenate([[0], *ends])[:-1]
        # documents without a token have no start
        self.tokens = DocumentTokens(self.ids, np.unique(starts[starts < len(self.ids)]))
        self.num_documents = len(self.tokens.document_starts)
        summaries = [summarize_tokens(file.ids, source=str(file.path)) for file in files]
        digest = hashlib.sha256()
        for file, summary in zip(files, summaries, strict=True):
            digest.update(summary.digest.encode() + hashlib.sha256(file.ends.tobytes()).digest())
        self.max_token_id = max(summary.max_token_id for summary in summaries)
        self.id_summary = TokenSummary(digest.hexdigest(), self.max_token_id)
        self.summary = TokenSummary(digest.hexdigest(), self.max_token_id * ID_FACTOR)
        self._paths = [path for file in files for path in (file.path, file.index_path)]
        if not len(self.ids):
            raise problem_error(
                "data", f"'{source}' holds no token", path=("path",), hint="name other files"
            )

    def get_unchanged_file(self) -> UnchangedFiles:
        """Return the files, to check that they stay as they are now."""
        return UnchangedFiles(self._paths)


def open_tokenized_documents(
    path: str, layout: str, tokenizer: Tokenizer | None = None
) -> TokenizedDocuments:
    """Open the files at a file name, a folder or a glob.

    Raises:
        ProblemsFound: A data problem if there are none, one is damaged, or one names the digest of
            another tokenizer.
    """
    suffix, open_file = OPENERS[layout]
    files = [open_file(file) for file in resolve_data_files(path, (suffix,))]
    if tokenizer is not None:
        check_tokenizer_digests(files, tokenizer)
    documents = TokenizedDocuments(files, source=path)
    names = sorted({file.tokenizer for file in files if file.tokenizer})
    log.info(
        "%s with %s in %s%s",
        pluralize(documents.num_documents, "document"),
        pluralize(len(documents.ids), "token"),
        pluralize(len(files), "file"),
        f", tokenized with {', '.join(names)}" if names else "",
    )
    return documents


def check_tokenizer_digests(files: Sequence[TokenizedFile], tokenizer: Tokenizer) -> None:
    """Raise a data problem if a file names the digest of another tokenizer than the recipe's."""
    for file in files:
        digest = find_tokenizer_digest(file.tokenizer or "")
        if digest is not None and digest != tokenizer.fingerprint:
            raise problem_error(
                "data",
                f"'{file.path}' was tokenized with the tokenizer {digest[:12]}, "
                f"the recipe's is {tokenizer.fingerprint[:12]}",
                path=("path",),
                hint="name the tokenizer of the files in the recipe, or tokenize again",
            )
