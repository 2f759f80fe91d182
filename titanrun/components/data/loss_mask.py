"""Loss masks of conversations: characters in the loss and their weights."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.spec.chat_content import Message
from titanrun.components.data.spec.chat_formats import Conversation
from titanrun.components.tokenizers.chat_template import TEMPLATE_PATH, ChatTemplate, Span
from titanrun.components.tokenizers.reply_spans import (
    compute_turn_span,
    extend_to_turn_end,
    render_with_replies,
)
from titanrun.config.problems import ProblemsFound, problem_error


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


def nothing_learned_error(conversation: MaskedConversation) -> ProblemsFound:
    """Build the problem of a conversation of which nothing counts in the loss."""
    is_weighted = conversation.weights is not None
    what = "message with a nonzero loss weight" if is_weighted else "assistant reply"
    return problem_error(
        "data",
        f"{conversation.location} has no {what}",
        path=("path",),
        hint="remove such conversations",
    )


def build_loss_mask(
    config: ChatDatasetConfig,
    template: ChatTemplate,
    conversation: Conversation,
    location: str,
    *,
    end_tokens: Collection[str] = (),
) -> MaskedConversation:
    """Render a conversation with its template and mark the spans in the loss.

    Replies are extended to one of the end tokens after them.

    Raises:
        ProblemsFound: A data problem if the spans cannot be determined.
    """
    messages = conversation.messages
    if config.train_on == "all":
        text = template.render(messages)
        return MaskedConversation(text, [(0, len(text))], location)
    text, replies = render_with_replies(template, messages, location)
    replies = [extend_to_turn_end(text, span, end_tokens) for span in replies]
    if config.has_token_weights:
        return weight_loss_mask(
            config, template, conversation, MaskedConversation(text, replies, location)
        )
    asked = messages[: conversation.prompt_length]
    if config.train_on == "last_reply":
        replies = replies[-1:]
    elif count_replies(asked):
        replies = replies[-count_replies(messages[len(asked) :]) :]
    return MaskedConversation(text, replies, location)


def count_replies(messages: Sequence[Message]) -> int:
    """Return how many messages are the assistant's."""
    return sum(message["role"] == "assistant" for message in messages)


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


def list_message_weights(config: ChatDatasetConfig, messages: Sequence[Message]) -> list[float]:
    """Return the weight of each message: that of its role times its own."""
    by_role = (
        config.role_weights.get_weights() if config.train_on == "roles" else {"assistant": 1.0}
    )
    return [
        by_role.get(message["role"], 0.0)
        * (1.0 if config.turn_weights is None else message.get(config.turn_weights, 1.0))
        for message in messages
    ]


def weight_loss_mask(
    config: ChatDatasetConfig,
    template: ChatTemplate,
    conversation: Conversation,
    masked: MaskedConversation,
) -> MaskedConversation:
    """Add the weight of each span: the weight of its role times that of its message.

    `masked` has the spans of the replies.
    """
    messages = conversation.messages
    by_message = list_message_weights(config, messages)
    replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if len(replies) != len(masked.spans):
        problem = (
            f"{template} marks {len(masked.spans)} spans of {masked.location} as "
            f"replies, but it has {len(replies)}: weights cannot be assigned"
        )
        raise problem_error(
            "data",
            problem,
            path=TEMPLATE_PATH,
            is_absolute=True,
            hint="put one {% generation %} block around each reply, or remove all of them",
        )
    if config.train_on != "roles":
        last = config.train_on == "last_reply"
        first = replies[-1] if last else conversation.prompt_length
        by_message = [
            weight if number >= first else 0.0 for number, weight in enumerate(by_message)
        ]
    spans = dict(zip(replies, masked.spans, strict=True))
    learned = [number for number, weight in enumerate(by_message) if weight]
    for number in learned:
        if number not in spans:
            spans[number] = compute_turn_span(
                template, messages, number, masked.text, masked.location
            )
    return MaskedConversation(
        masked.text,
        [spans[number] for number in learned],
        masked.location,
        [by_message[number] for number in learned],
    )
