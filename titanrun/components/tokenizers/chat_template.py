"""What a user says, in the words that a chat model was trained on: the Jinja template of a tokenizer's folder."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from titanrun.components.tokenizers.vocabulary import chat_template, open_folder
from titanrun.config.problems import fail

Message = dict[str, Any]
Span = tuple[int, int]
"""From which character to which."""
# two code points that Unicode keeps out of texts
OPEN, CLOSE = "\ufdd0", "\ufdd1"


class ReplyMarks(Extension):
    """The block `{% generation %}`, by which templates for transformers say what the assistant wrote."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The block with a mark on each side of its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller: Callable[[], str]) -> str:
        """The text of a block between two marks."""
        return f"{OPEN}{caller()}{CLOSE}"


class ChatTemplate:
    """A template, ready for many conversations. It cannot reach beyond its text, and knows no date, so that data stay the same.

    Args:
        text: of the template.
        special: text of the special tokens by their role, such as bos_token.
        source: what it is called in messages.
    """

    def __init__(self, text: str, special: dict[str, str], *, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, ReplyMarks])
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = refuse
        self._special, self._source = special, source
        self.digest = hashlib.sha256(json.dumps([text, special]).encode()).hexdigest()
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise fail(
                "data", f"the chat template of '{source}' cannot be read: {error}", path=("template",), help="write it again"
            ) from None

    def render(self, messages: Sequence[Message], *, with_reply_opened: bool = False) -> str:
        """The text of a conversation, as transformers' apply_chat_template gives it."""
        return self._render(messages, with_reply_opened).replace(OPEN, "").replace(CLOSE, "")

    def render_marked(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text of a conversation, and where the template marks what the assistant wrote; no spans where it marks nothing."""
        pieces = self._render(messages, False).replace(CLOSE, OPEN).split(OPEN)
        spans, end = [], 0
        for number, piece in enumerate(pieces):
            if number % 2:
                spans.append((end, end + len(piece)))
            end += len(piece)
        return "".join(pieces), spans

    def _render(self, messages: Sequence[Message], with_reply_opened: bool) -> str:
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=with_reply_opened, **self._special)
        # a template computes with whatever the messages hold
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            message = f"the chat template of '{self._source}' refuses the messages: {error}"
            raise fail(
                "data", message, path=("template",), help="change the messages, or take a template that has words for them"
            ) from None


def folder_template(folder: Path) -> ChatTemplate:
    """The template of a tokenizer's folder. Raises ProblemsFound where it has none."""
    return ChatTemplate(chat_template(folder), open_folder(folder).special_tokens, source=str(folder))


def rendered(folder: Path, messages: Sequence[Message], *, with_reply_opened: bool) -> str:
    """The text of a conversation by the folder's template, as transformers' apply_chat_template gives it.

    Args:
        folder: of a tokenizer.
        messages: each with `role` and `content`.
        with_reply_opened: whether the beginning of the assistant's next turn follows.

    Raises ProblemsFound where the folder has no template, or the template refuses the messages.
    """
    return folder_template(folder).render(messages, with_reply_opened=with_reply_opened)


def refuse(message: str) -> None:
    """What a template calls for messages that it cannot put into words."""
    raise TemplateError(message)
