"""Rendering of conversations as prompt tokens, and decoding of completions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.rl.rollout_types import Rollout

Message = dict[str, str]


class Renderer(Protocol):
    """Converter from conversations to tokens."""

    def render_prompt(self, rollout: Rollout) -> list[int]:
        """Return all tokens before the next completion."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion."""


@dataclass(frozen=True, slots=True)
class PlainRenderer:
    """Renderer of unformatted prompts.

    Observations follow the policy's tokens as sampled, so no text is tokenized twice.
    """

    tokenizer: Tokenizer

    def render_prompt(self, rollout: Rollout) -> list[int]:
        """Return all tokens before the next completion."""
        if not rollout.turns:
            return self.tokenizer.encode(rollout.question.prompt, add_bos=True, add_eos=False)
        last = rollout.turns[-1]
        return [
            *last.prompt,
            *last.completion.tokens,
            *self.tokenizer.encode(rollout.heard[-1], add_bos=False, add_eos=False),
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion."""
        return self.tokenizer.decode(tokens)


@dataclass(frozen=True, slots=True)
class ChatRenderer:
    """Renderer that applies a chat template to the whole conversation before each completion.

    Special tokens are part of the template's text.

    Args:
        tokenizer: encodes the text.
        apply_chat_template: returns the text of messages, up to the start of an assistant reply.
    """

    tokenizer: Tokenizer
    apply_chat_template: Callable[[Sequence[Message]], str]

    def render_prompt(self, rollout: Rollout) -> list[int]:
        """Return all tokens before the next completion."""
        messages = [{"role": "user", "content": rollout.question.prompt}]
        for turn, heard in zip(rollout.turns, rollout.heard, strict=True):
            messages += [
                {"role": "assistant", "content": turn.text},
                {"role": "user", "content": heard},
            ]
        return self.tokenizer.encode(
            self.apply_chat_template(messages), add_bos=False, add_eos=False
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion."""
        return self.tokenizer.decode(tokens)
