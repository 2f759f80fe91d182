"""Conversations as the tokens that a policy reads, and its tokens as text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.rl.samples import Rollout

Message = dict[str, str]


class Renderer(Protocol):
    """Makes tokens of conversations."""

    def prompt(self, rollout: Rollout) -> list[int]:
        """All tokens before the next answer."""

    def text(self, tokens: Sequence[int]) -> str:
        """What the policy said."""


@dataclass(frozen=True, slots=True)
class PlainRenderer:
    """Prompts as they are written. What the environment says follows the policy's tokens as they were drawn: nothing is tokenised twice."""

    tokenizer: Tokenizer

    def prompt(self, rollout: Rollout) -> list[int]:
        if not rollout.turns:
            return self.tokenizer.encode(rollout.question.prompt, bos=True, eos=False)
        last = rollout.turns[-1]
        return [
            *last.prompt,
            *last.completion.tokens,
            *self.tokenizer.encode(rollout.heard[-1], bos=False, eos=False),
        ]

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)


@dataclass(frozen=True, slots=True)
class ChatRenderer:
    """Conversations put into words by a chat template, anew for each answer; special tokens are in the template's text.

    Args:
        tokenizer: makes ids of the words.
        render: the words of messages, with an answer opened.
    """

    tokenizer: Tokenizer
    render: Callable[[Sequence[Message]], str]

    def prompt(self, rollout: Rollout) -> list[int]:
        messages = [{"role": "user", "content": rollout.question.prompt}]
        for turn, heard in zip(rollout.turns, rollout.heard, strict=True):
            messages += [
                {"role": "assistant", "content": turn.text},
                {"role": "user", "content": heard},
            ]
        return self.tokenizer.encode(self.render(messages), bos=False, eos=False)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)
