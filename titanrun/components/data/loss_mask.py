"""Loss masks of conversations: characters in the loss and their weights."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.spec.chat_content import Message
from titanrun.components.tokenizers.chat_template import TEMPLATE_PATH, ChatTemplate, Span
from titanrun.components.tokenizers.reply_spans import (
    compute_turn_span,
    extend_to_turn_end,
    render_with_replies,
)
from titanrun.config.problems import problem_error


@dataclass(frozen=True, slots=True)
class MaskedConversation:
    """Text of a conversation with the spans that count in the loss.

    `weights` has one weight per span, None means 1 for all. `location` is for messages. `value`
    belongs to the whole conversation, such as its label; it takes the place of the weights.
    """

    text: str
    spans: Sequence[Span]
    location: str
    weights: Sequence[float] | None = None
    value: float | None = None


def build_loss_mask(
    config: ChatDatasetConfig,
    template: ChatTemplate,
    messages: list[Message],
    location: str,
    *,
    end_tokens: Collection[str] = (),
) -> MaskedConversation:
    """Render a conversation with its template and mark the spans in the loss.

    Replies are extended to one of the end tokens after them.

    Raises:
        ProblemsFound: A data problem if the spans cannot be determined.
    """
    if config.train_on == "all":
        text = template.render(messages)
        return MaskedConversation(text, [(0, len(text))], location)
    text, replies = render_with_replies(template, messages, location)
    replies = [extend_to_turn_end(text, span, end_tokens) for span in replies]
    if config.has_token_weights:
        return weight_loss_mask(
            config, template, messages, MaskedConversation(text, replies, location)
        )
    return MaskedConversation(
        text, replies[-1:] if config.train_on == "last_reply" else replies, location
    )


def mask_all_but_last_reply(
    template: ChatTemplate,
    messages: list[Message],
    location: str,
    *,
    end_tokens: Collection[str] = (),
) -> MaskedConversation:
    """Build a loss mask that selects only the last assistant reply, with an end token after it."""
    text, replies = render_with_replies(template, messages, location)
    last = [extend_to_turn_end(text, span, end_tokens) for span in replies[-1:]]
    return MaskedConversation(text, last, location)


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
            path=TEMPLATE_PATH,
            is_absolute=True,
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
