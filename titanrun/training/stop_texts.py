"""Texts at which generation stops."""

from collections.abc import Sequence

from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer


class StopTexts:
    """Texts that end a continuation and are left out of it.

    A text with special tokens, which decoded text lacks, is found by its ids.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self._ids: list[list[int]] = []
        for text in texts:
            ids = tokenizer.encode(text, add_bos=False, add_eos=False)
            if any(not tokenizer.decode([token]) for token in ids):
                self._ids.append(ids)
            else:
                self._texts.append(text)

    def is_reached(self, tokens: Sequence[int]) -> bool:
        """Return whether one of the texts is in a continuation or, by its ids, at its end."""
        if any(tokens[-len(ids) :] == ids for ids in self._ids):
            return True
        decoded = self._tokenizer.decode(tokens) if self._texts else ""
        return any(text in decoded for text in self._texts)

    def decode_before_stop(self, tokens: Sequence[int]) -> str:
        """Return the text of a continuation before the first of the texts."""
        ends = [len(tokens) - len(ids) for ids in self._ids if tokens[-len(ids) :] == ids]
        decoded = self._tokenizer.decode(tokens[: min(ends, default=len(tokens))])
        for text in self._texts:
            decoded = decoded.partition(text)[0]
        return decoded
