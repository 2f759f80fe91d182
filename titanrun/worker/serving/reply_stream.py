"""Text of a continuation while it is generated."""

from collections.abc import Callable, Sequence

from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.training.stop_texts import StopTexts

# what an incomplete character decodes to
REPLACEMENT = "\ufffd"


class ReplyStream:
    """Text of one continuation, passed on piece by piece.

    The bytes of an incomplete character are held back, and a text that may become a stop text.

    Args:
        tokenizer: the tokenizer of the model.
        stop: texts that end the continuation and are left out of it.
        on_text: called with each new piece of text.
        is_reply: whether it is a reply in a chat, of which only the final channel is passed on.
        blank: white space that the chat template puts before a reply.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        on_text: Callable[[str], None],
        *,
        is_reply: bool,
        blank: str = "",
    ) -> None:
        self._stop = StopTexts(tokenizer, stop, is_reply=is_reply, blank=blank)
        self._texts, self._on_text = tuple(stop), on_text
        self.text = ""

    def add(self, tokens: Sequence[int]) -> bool:
        """Pass new text on. Return whether a stop text is reached.

        Args:
            tokens: all tokens so far.
        """
        is_stopped = self._stop.is_reached(tokens)
        whole = self._stop.decode_before_stop(tokens)
        self._pass_on(whole if is_stopped else whole[: len(whole) - self._count_held_back(whole)])
        return is_stopped

    def close(self, tokens: Sequence[int]) -> None:
        """Pass on what was held back. `tokens` are all tokens without an end token."""
        self._pass_on(self._stop.decode_before_stop(tokens))

    def _count_held_back(self, text: str) -> int:
        """Return how many characters at the end of a text may still change."""
        incomplete = len(text) - len(text.rstrip(REPLACEMENT))
        lengths = [
            length
            for stop in self._texts
            for length in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:length])
        ]
        return max([incomplete, *lengths])

    def _pass_on(self, text: str) -> None:
        if len(text) > len(self.text):
            piece, self.text = text[len(self.text) :], text
            self._on_text(piece)
