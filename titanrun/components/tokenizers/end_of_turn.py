"""The token with which a chat template ends a reply."""

from collections.abc import Collection
from dataclasses import dataclass

from titanrun.components.data.spec.chat_content import Message
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.reply_spans import (
    find_token_at,
    render_with_replies,
    skip_white_space,
)
from titanrun.components.tokenizers.spec.stop_tokens import (
    load_special_token_texts,
    load_stop_tokens,
)
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, TemplateSource
from titanrun.config.problems import ProblemsFound, problem_error

PROBE_REPLY = "xyzzy"
PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "Which word?"},
    {"role": "assistant", "content": PROBE_REPLY},
)


@dataclass(frozen=True, slots=True)
class EndOfTurn:
    """What a template writes after the text of a reply.

    Attributes:
        text: the text after the reply, without outer white space. Empty if there is none.
        token: the special token that this text begins with, None if it begins with none.
        is_marked: whether the token is in the span of the reply.
    """

    text: str
    token: str | None
    is_marked: bool


def find_turn_end(template: ChatTemplate, special_tokens: Collection[str]) -> EndOfTurn | None:
    """Return what a template writes after a reply, by rendering one.

    Return None if the template refuses the reply.
    """
    try:
        text, spans = render_with_replies(template, PROBE, "a test conversation")
    except ProblemsFound:
        return None
    if not spans or PROBE_REPLY not in text:
        return None
    first = skip_white_space(text, text.rindex(PROBE_REPLY) + len(PROBE_REPLY))
    token = find_token_at(text, first, special_tokens)
    return EndOfTurn(
        text[first:].rstrip(), token, token is not None and first + len(token) <= spans[-1][1]
    )


def find_end_tokens(template: ChatTemplate, source: TemplateSource) -> frozenset[str]:
    """Return the text of the tokens that may end a reply.

    These are the tokens at which generation stops, and the one that the template writes after a
    reply.

    Raises:
        ProblemsFound: A data problem if a file of the tokenizer cannot be read.
    """
    found = find_turn_end(template, load_special_token_texts(source.folder))
    named = () if found is None or found.token is None else (found.token,)
    return frozenset((*load_stop_tokens(source.folder), *source.stop_tokens, *named))


def find_end_texts(template: ChatTemplate, tokenizer: ChatTokenizer) -> dict[int, str]:
    """Return the tokens that end a reply, as `find_end_tokens` finds them, by their ids.

    Raises:
        ProblemsFound: A data problem if a file of the tokenizer cannot be read.
    """
    found = {} if tokenizer.eos_id is None else {tokenizer.eos_id: "the end of text"}
    for text in sorted(find_end_tokens(template, tokenizer)):
        ids = tokenizer.encode(text, add_bos=False, add_eos=False)
        if len(ids) == 1:
            found[ids[0]] = text
    return found


def find_end_ids(template: ChatTemplate, tokenizer: ChatTokenizer) -> frozenset[int]:
    """Return the ids of the tokens that end a reply.

    Raises:
        ProblemsFound: A data problem if a file of the tokenizer cannot be read.
    """
    return frozenset(find_end_texts(template, tokenizer))


def load_trained_end_tokens(template: ChatTemplate, source: TemplateSource) -> frozenset[str]:
    """Return the tokens that train_end_of_turn adds to replies.

    Raises:
        ProblemsFound: A data problem if the template writes none after a reply.
    """
    found = find_turn_end(template, load_special_token_texts(source.folder))
    if found is not None and found.token is None:
        raise problem_error(
            "data",
            f"{template} writes no special token after a reply",
            path=("train_end_of_turn",),
            hint="use a template that ends replies with one, such as eos_token",
        )
    return find_end_tokens(template, source)
