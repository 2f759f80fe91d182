"""Spans of replies and turns in the text of a conversation."""

import re
from collections.abc import Collection, Sequence

from titanrun.components.data.spec.chat_content import Message
from titanrun.components.tokenizers.chat_template import TEMPLATE_PATH, ChatTemplate, Span
from titanrun.config.problems import problem_error

WHITE_SPACE = re.compile(r"\s*")


def render_with_replies(
    template: ChatTemplate, messages: Sequence[Message], location: str
) -> tuple[str, list[Span]]:
    """Return the text of a conversation and the spans of its replies.

    They are those that the template marks, or else follow from its turns.

    Raises:
        ProblemsFound: A data problem if the spans cannot be determined.
    """
    text, marked = template.render_with_reply_spans(messages)
    return text, marked or compute_reply_spans(template, messages, text, location)


def extend_to_turn_end(text: str, span: Span, end_tokens: Collection[str]) -> Span:
    """Return the span of a reply with the end-of-turn token after it.

    White space may stand between them. The span is unchanged if it ends with such a token, or none
    follows.
    """
    start, end = span
    if ends_with_token(text[start:end], end_tokens):
        return span
    first = skip_white_space(text, end)
    token = find_token_at(text, first, end_tokens)
    return span if token is None else (start, first + len(token))


def ends_with_token(text: str, tokens: Collection[str]) -> bool:
    """Return whether a text ends with one of the tokens, white space aside."""
    return text.rstrip().endswith(tuple(tokens))


def skip_white_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space."""
    found = WHITE_SPACE.match(text, position)
    return position if found is None else found.end()


def find_token_at(text: str, position: int, tokens: Collection[str]) -> str | None:
    """Return the longest token at a position of a text, None if there is none."""
    found = [token for token in tokens if text.startswith(token, position)]
    return max(found, key=len, default=None)


def compute_reply_spans(
    template: ChatTemplate, messages: Sequence[Message], text: str, location: str
) -> list[Span]:
    """Return the spans of the replies in a text whose template has no marks.

    A span is from the opening of the assistant's turn to its end, without line ends after it.

    Raises:
        ProblemsFound: A data problem if the template renders a turn differently when others follow.
    """
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = template.render(messages[:number], add_generation_prompt=True) if number else ""
        through = template.render(messages[: number + 1])
        if not (through.startswith(before) and text.startswith(through)):
            problem = (
                f"the chat template does not render message {number + 1} of {location} after its "
                "generation prompt, or renders it differently when others follow"
            )
            raise problem_error(
                "data",
                problem,
                path=TEMPLATE_PATH,
                is_absolute=True,
                hint="put {% generation %} and {% endgeneration %} around assistant text",
            )
        spans.append((len(before), len(through.rstrip("\n"))))
    return spans


def compute_turn_span(
    template: ChatTemplate, messages: Sequence[Message], number: int, text: str, location: str
) -> Span:
    """Return the span of a message in a text, including the template text around it.

    Raises:
        ProblemsFound: A data problem if the template renders it differently when others follow.
    """
    before = template.render(messages[:number]) if number else ""
    through = template.render(messages[: number + 1])
    if not (through.startswith(before) and text.startswith(through)):
        problem = (
            f"the chat template renders message {number + 1} of {location} differently "
            "when others follow, so it can have no weight"
        )
        raise problem_error(
            "data",
            problem,
            path=TEMPLATE_PATH,
            is_absolute=True,
            hint="remove the role from role_weights, or use another template",
        )
    return len(before), len(through)
