"""Which characters of a conversation are learned, and what they weigh in the loss."""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.components.data.config import ChatDatasetConfig
from titanrun.components.tokenizers.chat_template import (
    ChatTemplate,
    Message,
    Span,
    span_of_turn,
    spans_of_replies,
)
from titanrun.config.problems import fail


@dataclass(frozen=True, slots=True)
class Spoken:
    """The text of a conversation, the parts of it that are learned, and where it was read; `weights` are of these parts, None: all 1."""

    text: str
    spans: Sequence[Span]
    place: str
    weights: Sequence[float] | None = None


def spoken(
    config: ChatDatasetConfig, template: ChatTemplate, messages: list[Message], place: str
) -> Spoken:
    """A conversation in the words of a template. Raises a data problem where it cannot be said what is learned."""
    if config.train_on == "all":
        text = template.render(messages)
        return Spoken(text, [(0, len(text))], place)
    text, marked = template.render_marked(messages)
    replies = marked or spans_of_replies(template, messages, text, place)
    if config.weighs_tokens:
        return weighed(config, template, messages, Spoken(text, replies, place))
    return Spoken(text, replies[-1:] if config.train_on == "last_reply" else replies, place)


def last_reply(template: ChatTemplate, messages: list[Message], place: str) -> Spoken:
    """A conversation of which the last reply counts."""
    text, marked = template.render_marked(messages)
    return Spoken(text, (marked or spans_of_replies(template, messages, text, place))[-1:], place)


def weighed(
    config: ChatDatasetConfig, template: ChatTemplate, messages: list[Message], found: Spoken
) -> Spoken:
    """A conversation with the weight of each part: that of its role times that of its message. `found` has its replies."""
    by_role = config.role_weights.named() if config.train_on == "roles" else {"assistant": 1.0}
    by_message = [
        by_role.get(message["role"], 0.0)
        * (1.0 if config.turn_weights is None else message.get(config.turn_weights, 1.0))
        for message in messages
    ]
    said = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if len(said) != len(found.spans):
        problem = f"{template} marks {len(found.spans)} parts of {found.place} as replies, and it has {len(said)}: none has a weight"
        raise fail(
            "data",
            problem,
            path=("template",),
            help="put one {% generation %} block around each reply, or none anywhere",
        )
    if config.train_on == "last_reply":
        by_message = [
            weight if number == said[-1] else 0.0 for number, weight in enumerate(by_message)
        ]
    spans = dict(zip(said, found.spans, strict=True))
    learned = [number for number, weight in enumerate(by_message) if weight]
    for number in learned:
        if number not in spans:
            spans[number] = span_of_turn(template, messages, number, found.text, found.place)
    return Spoken(
        found.text,
        [spans[number] for number in learned],
        found.place,
        [by_message[number] for number in learned],
    )
