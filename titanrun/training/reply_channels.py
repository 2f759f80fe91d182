"""The final part of replies that models such as gpt-oss write in several channels."""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

CHANNEL, MESSAGE, FINAL = "<|channel|>", "<|message|>", "final"


@dataclass(frozen=True, slots=True)
class ReplyChannels:
    """Tokens that name the channel of a message, and begin its text.

    Args:
        channel_id: id of the token before the name of a channel.
        message_id: id of the token between the name and the text.
        tokenizer: the tokenizer of the ids.
    """

    channel_id: int
    message_id: int
    tokenizer: Tokenizer

    def select_final(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens of the channel `final`, all tokens if no channel is named.

        Thinking, which is in another channel, is left out: no tokens are returned before the final
        text begins.
        """
        if self.channel_id not in tokens:
            return tokens
        start = len(tokens) - list(tokens)[::-1].index(self.channel_id)
        if self.message_id not in tokens[start:]:
            return []
        text = tokens.index(self.message_id, start)
        is_final = self.tokenizer.decode(tokens[start:text]).strip() == FINAL
        return tokens[text + 1 :] if is_final else []


def find_reply_channels(tokenizer: Tokenizer) -> ReplyChannels | None:
    """Return the tokens of channels, None if the tokenizer has none."""
    channel, message = (
        tokenizer.encode(text, add_bos=False, add_eos=False) for text in (CHANNEL, MESSAGE)
    )
    if len(channel) != 1 or len(message) != 1 or tokenizer.decode([*channel, *message]):
        return None
    return ReplyChannels(channel[0], message[0], tokenizer)
