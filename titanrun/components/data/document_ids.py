"""Document ids of the tokens of a batch, for attention within documents only.

Shapes: N sequences, T tokens of a sequence, M documents of a sequence at most.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import problem_error

DocumentIdFn = Callable[[TokenBatch], TokenBatch]
DOCUMENTS_FIELD_PATH = ("model", "attention", "documents")


def skip_document_ids(batch: TokenBatch) -> TokenBatch:
    """Return the batch unchanged: each sequence is one document."""
    return batch


def document_ids_from_positions(batch: TokenBatch) -> TokenBatch:
    """Set document ids: a document begins if a position does not follow the last.

    Existing document ids are kept.
    """
    if batch.positions is None or batch.document_ids is not None:
        return batch
    return replace(batch, document_ids=build_document_ids(batch.positions.diff(dim=1) != 1))


def document_ids_from_eos(batch: TokenBatch, *, eos_id: int) -> TokenBatch:
    """Set document ids: a document begins after each end-of-text token.

    The token belongs to the document that it ends.

    Raises:
        ProblemsFound: If the positions of the batch separate documents, too.
    """
    if batch.positions is not None and bool((batch.positions.diff(dim=1) != 1).any()):
        message = (
            "the data separates documents by positions that restart, "
            "but the recipe by end-of-text tokens"
        )
        raise problem_error(
            "conflict",
            message,
            path=DOCUMENTS_FIELD_PATH,
            hint="set model.attention.documents: positions",
        )
    return replace(batch, document_ids=build_document_ids(batch.tokens[:, :-1] == eos_id))


def build_document_ids(is_document_end: Tensor) -> Tensor:
    """Return document ids [N, T] from whether a document ends at each token but the last.

    Args:
        is_document_end: Bool tensor [N, T - 1].
    """
    first = is_document_end.new_zeros(len(is_document_end), 1)
    return torch.cat([first, is_document_end], dim=1).cumsum(dim=1)


def attach_document_starts(batch: TokenBatch) -> TokenBatch:
    """Set the columns at which documents start, from document ids in host memory.

    Kernels for separate sequences need them, and would make the host wait if they were found on an
    accelerator. Their number is rounded up to a power of two, so that few shapes occur.
    """
    ids_NT = batch.document_ids
    if ids_NT is None or ids_NT.device.type != "cpu":
        return batch
    is_start_NT = torch.ones_like(ids_NT, dtype=torch.bool)
    is_start_NT[:, 1:] = ids_NT.diff(dim=1) != 0
    longest = int(is_start_NT.sum(1).max())
    starts_NM = torch.full(
        (len(ids_NT), 1 << (longest - 1).bit_length()), ids_NT.size(1), dtype=torch.int32
    )
    rows, columns = is_start_NT.nonzero(as_tuple=True)
    starts_NM[rows, is_start_NT.cumsum(1)[rows, columns] - 1] = columns.to(torch.int32)
    return replace(batch, document_starts=starts_NM)


def get_document_id_fn(
    source: str | None, *, eos_id: int | None, needs_starts: bool = False
) -> DocumentIdFn:
    """Return the function that numbers the documents of a batch, by the source in the recipe.

    Args:
        source: What separates documents. None: nothing.
        eos_id: End-of-text token of the tokenizer.
        needs_starts: Whether attention also needs the columns at which documents start.

    Raises:
        ProblemsFound: If the source is a token that the tokenizer does not have.
    """
    if needs_starts:
        number_documents = get_document_id_fn(source, eos_id=eos_id)
        return lambda batch: attach_document_starts(number_documents(batch))
    if source is None:
        return skip_document_ids
    if source == "positions":
        return document_ids_from_positions
    if eos_id is None:
        message = "documents end with an end-of-text token, but the tokenizer has none"
        raise problem_error(
            "conflict",
            message,
            path=DOCUMENTS_FIELD_PATH,
            hint="give the tokenizer an eos_token, or set model.attention.mask: causal",
        )
    return partial(document_ids_from_eos, eos_id=eos_id)
