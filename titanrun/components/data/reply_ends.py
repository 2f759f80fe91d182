"""Check of replies for the token that ends a turn."""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.document_split import Holdout
from titanrun.components.data.packed_sequences import PackedDataset
from titanrun.components.data.token_file import TokenStream
from titanrun.components.data.token_records import (
    BLOCK_TOKENS,
    ID_FACTOR,
    IN_LOSS,
    strip_weights,
)
from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.end_of_turn import find_end_texts
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer

log = logging.getLogger(__name__)


class ReplyEnds:
    """Check of replies for the token that ends a turn.

    Args:
        end_ids: ids of the tokens that end a turn.
        tokenizer: the tokenizer of the ids.
    """

    def __init__(self, end_ids: Collection[int], tokenizer: Tokenizer) -> None:
        self._end_ids, self._tokenizer = end_ids, tokenizer
        self._white_space: dict[int, bool] = {}

    def iter_ends(
        self, ids: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> Iterator[tuple[int, bool]]:
        """Yield where each reply of a document ends, and whether an end token is its last.

        White space after the token is ignored. A reply is the tokens in the loss between others: a
        document that counts as a whole has none.
        """
        if len(ids) and counts[1:].all():
            return
        for end in (np.flatnonzero((counts[:-1] != 0) & (counts[1:] == 0)) + 1).tolist() + (
            [len(ids)] if len(ids) and counts[-1] else []
        ):
            last = end - 1
            while last > 0 and counts[last - 1] and self._is_white_space(int(ids[last])):
                last -= 1
            yield end, int(ids[last]) in self._end_ids

    def count_last_tokens(
        self, tokens: TokenStream, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Counter[int]:
        """Return how many replies of documents end with each token, white space after it aside.

        Args:
            tokens: encoded tokens of an index.
            starts: start of each document in them, in ascending order.
            lengths: length of each, which may be cut.
        """
        found = Counter[int]()
        first = 0
        while first < len(starts):
            last = int(np.searchsorted(starts, starts[first] + BLOCK_TOKENS))
            offset, ends = int(starts[first]), (starts + lengths)[first:last]
            codes = strip_weights(tokens[offset : int(ends[-1])])
            found.update(self._list_last_ids(codes, starts[first:last] - offset, ends - offset))
            first = last
        return found

    def _list_last_ids(
        self, codes: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> list[int]:
        depth = np.zeros(len(codes) + 1, dtype=np.int64)
        depth[starts] += 1
        depth[ends] -= 1
        is_counted = (codes & IN_LOSS > 0) & (np.cumsum(depth[:-1]) > 0)
        # the first token of a document is never in the loss, so replies of two are apart
        places = np.flatnonzero(is_counted & ~np.append(is_counted[1:], False))
        while True:
            ids, which = np.unique(codes[places] // ID_FACTOR, return_inverse=True)
            is_space = np.array([self._is_white_space(int(one)) for one in ids], dtype=bool)[which]
            is_space &= is_counted[places - 1]
            if not is_space.any():
                return [int(one) for one in ids[which]]
            places = places - is_space

    def _is_white_space(self, token_id: int) -> bool:
        if token_id not in self._white_space:
            self._white_space[token_id] = self._tokenizer.decode([token_id]).isspace()
        return self._white_space[token_id]


def log_reply_ends(
    packed: PackedDataset, tokenizer: ChatTokenizer, holdout: Holdout | None
) -> None:
    """Log how many replies end with a token that ends a turn, as a warning if not all do.

    Only tokens in the loss count. Nothing is logged for the documents that are held out.

    Example: `12,034 of 12,034 replies end with <|im_end|>, learned`.
    """
    if holdout is not None and holdout.is_validation:
        return
    ends = find_end_texts(load_chat_template(tokenizer), tokenizer)
    counts = ReplyEnds(ends, tokenizer).count_last_tokens(packed.tokens, *packed.list_pieces())
    level = logging.INFO if ends.keys() >= counts.keys() else logging.WARNING
    log.log(level, "%s", format_reply_ends(counts, ends))


def format_reply_ends(counts: Mapping[int, int], ends: Mapping[int, str]) -> str:
    """Format how many replies end with a token of `ends`, of the numbers of last tokens."""
    learned = sum(counts[one] for one in counts if one in ends)
    named = sorted(ends[one] for one in (counts.keys() & ends.keys() or ends))
    total = sum(counts.values())
    text = f"{learned:,} of {total:,} replies end with {' or '.join(named)}, learned"
    return text if learned == total else f"{text}; of the others the model does not learn the end"
