"""Texts at which generation stops."""

from collections.abc import Sequence

from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.training.reply_channels import find_reply_channels


class StopTexts:
    """Texts that end a continuation and are left out of it.

    A text with special tokens, which decoded text lacks, is found by its ids. Of a reply in several
    channels, only the final one has text.

    Args:
        tokenizer: the tokenizer of the model.
        texts: the texts.
        is_reply: whether the continuation is a reply in a chat.
        blank: white space that the chat template puts before a reply. It is not part of its text.
    """

    def __init__(
        self, tokenizer: Tokenizer, texts: Sequence[str], *, is_reply: bool, blank: str = ""
    ) -> None:
        self._tokenizer = tokenizer
        self._blank = blank if is_reply else ""
        self._channels = find_reply_channels(tokenizer) if is_reply else None
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
        decoded = self._decode(tokens) if self._texts else ""
        return any(text in decoded for text in self._texts)

    def decode_before_stop(self, tokens: Sequence[int]) -> str:
        """Return the text of a continuation before the first of the texts."""
        ends = [len(tokens) - len(ids) for ids in self._ids if tokens[-len(ids) :] == ids]
        decoded = self._decode(tokens[: min(ends, default=len(tokens))])
        for text in self._texts:
            decoded = decoded.partition(text)[0]
        return decoded

    def _decode(self, tokens: Sequence[int]) -> str:
        channels = self._channels
        text = self._tokenizer.decode(tokens if channels is None else channels.select_final(tokens))
        # of the first pieces of a reply there may be a part of the blank only
        return "" if self._blank.startswith(text) else text.removeprefix(self._blank)
