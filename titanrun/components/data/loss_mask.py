"""Loss masks of conversations: characters in the loss and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.components.data.config import ChatDatasetConfig
from titanrun.components.data.spec.chat_content import Message
from titanrun.components.tokenizers.chat_template import (
    ChatTemplate,
    Span,
    compute_reply_spans,
    compute_turn_span,
)
from titanrun.config.problems import problem_error


@dataclass(frozen=True, slots=True)
class MaskedConversation:
    """Text of a conversation with the spans that count in the loss.

    `weights` has one weight per span, None means 1 for all. `location` is for messages.
    """

    text: str
    spans: Sequence[Span]
    location: str
    weights: Sequence[float] | None = None


def build_loss_mask(
    config: ChatDatasetConfig, template: ChatTemplate, messages: list[Message], location: str
) -> MaskedConversation:
    """Render a conversation with its template and mark the spans in the loss.

    Raises:
        ProblemsFound: A data problem if the spans cannot be determined.
    """
    if config.train_on == "all":
        text = template.render(messages)
        return MaskedConversation(text, [(0, len(text))], location)
    text, marked = template.render_with_reply_spans(messages)
    replies = marked or compute_reply_spans(template, messages, text, location)
    if config.has_token_weights:
        return weight_loss_mask(
            config, template, messages, MaskedConversation(text, replies, location)
        )
    return MaskedConversation(
        text, replies[-1:] if config.train_on == "last_reply" else replies, location
    )


def mask_all_but_last_reply(
    template: ChatTemplate, messages: list[Message], location: str
) -> MaskedConversation:
    """Build a loss mask that selects only the last assistant reply."""
    text, marked = template.render_with_reply_spans(messages)
    return MaskedConversation(
        text, (marked or compute_reply_spans(template, messages, text, location))[-1:], location
    )


def weight_loss_mask(
    config: ChatDatasetConfig,
    template: ChatTemplate,
    messages: list[Message],
    conversation: MaskedConversation,
) -> MaskedConversation:
    """Add the weight of each span: the weight of its role times that of its message.

    `conversation` has the spans of the replies.
    """
    by_role = (
        config.role_weights.get_weights() if config.train_on == "roles" else {"assistant": 1.0}
    )
    by_message = [
        by_role.get(message["role"], 0.0)
        * (1.0 if config.turn_weights is None else message.get(config.turn_weights, 1.0))
        for message in messages
    ]
    replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if len(replies) != len(conversation.spans):
        problem = (
            f"{template} marks {len(conversation.spans)} spans of {conversation.location} as "
            f"replies, but it has {len(replies)}: weights cannot be assigned"
        )
        raise problem_error(
            "data",
            problem,
            path=("template",),
            hint="put one {% generation %} block around each reply, or remove all of them",
        )
    if config.train_on == "last_reply":
        by_message = [
            weight if number == replies[-1] else 0.0 for number, weight in enumerate(by_message)
        ]
    spans = dict(zip(replies, conversation.spans, strict=True))
    learned = [number for number, weight in enumerate(by_message) if weight]
    for number in learned:
        if number not in spans:
            spans[number] = compute_turn_span(
                template, messages, number, conversation.text, conversation.location
            )
    return MaskedConversation(
        conversation.text,
        [spans[number] for number in learned],
        conversation.location,
        [by_message[number] for number in learned],
    )
