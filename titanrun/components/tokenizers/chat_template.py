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
from titanrun.config.problems import ProblemsFound, fail

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
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, ReplyMarks]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(
            value, ensure_ascii=False, **options
        )
        environment.globals["raise_exception"] = refuse
        self._special, self._source = special, source
        self.digest = hashlib.sha256(json.dumps([text, special]).encode()).hexdigest()
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise fail(
                "data",
                f"the chat template of '{source}' cannot be read: {error}",
                path=("template",),
                help="write it again",
            ) from None

    def __str__(self) -> str:
        return f"the chat template of '{self._source}'"

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
            return self._template.render(
                messages=list(messages), add_generation_prompt=with_reply_opened, **self._special
            )
        # a template computes with whatever the messages hold
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            message = f"{self} refuses the messages: {error}"
            raise fail(
                "data",
                message,
                path=("template",),
                help="change the messages, or take a template that has words for them",
            ) from None


def spans_of_replies(
    template: ChatTemplate, messages: list[Message], text: str, place: str
) -> list[Span]:
    """Where the assistant speaks in a text whose template marks nothing: from where its turn is opened to where the turn has ended.

    Line ends after a turn belong to nobody. Raises a data problem where the template writes a turn otherwise once others follow.
    """
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = template.render(messages[:number], with_reply_opened=True) if number else ""
        through = template.render(messages[: number + 1])
        if not (through.startswith(before) and text.startswith(through)):
            problem = f"the chat template does not write message {number + 1} of {place} as it opens a reply, or not the same once others follow"
            raise fail(
                "data",
                problem,
                path=("template",),
                help="put {% generation %} and {% endgeneration %} around what the assistant says",
            )
        spans.append((len(before), len(through.rstrip("\n"))))
    return spans


def span_of_turn(
    template: ChatTemplate, messages: Sequence[Message], number: int, text: str, place: str
) -> Span:
    """Where a message stands in a text, with the words that the template puts around it.

    Raises a data problem where the template writes it otherwise once others follow.
    """
    before = template.render(messages[:number]) if number else ""
    through = template.render(messages[: number + 1])
    if not (through.startswith(before) and text.startswith(through)):
        problem = f"the chat template does not write message {number + 1} of {place} the same once others follow, so it can have no weight"
        raise fail(
            "data",
            problem,
            path=("template",),
            help="take the role out of role_weights, or another template",
        )
    return len(before), len(through)


def check_words(template: ChatTemplate, messages: Sequence[Message], place: str) -> None:
    """Raises a data problem where a template refuses messages, or writes nothing of one: it has no words for that role.

    A message that has no content, or calls tools, which may stand in its place, is not looked for.
    """
    roles = ", ".join(dict.fromkeys(str(message["role"]) for message in messages))
    try:
        text = template.render(messages)
    except ProblemsFound as found:
        told = found.problems[0]
        raise fail(
            "data",
            f"{told.message}; {place} has messages from: {roles}",
            path=told.path,
            help=told.help,
        ) from None
    for number, message in enumerate(messages):
        if not message["content"].strip() or message.get("tool_calls"):
            continue
        # on both sides: a template may write only the beginning or only the end of a message
        other = {**message, "content": f"x{message['content']}x"}
        try:
            unread = template.render([*messages[:number], other, *messages[number + 1 :]]) == text
        except ProblemsFound:
            unread = False  # it was read, and is no longer what the template expects
        if unread:
            problem = f"{template} writes nothing of message {number + 1} of {place}, which is from '{message['role']}'"
            raise fail(
                "data",
                problem,
                path=("template",),
                help="take a template that has words for this role, or leave such messages out",
            )


def chosen_template(file: str | None, folder: Path) -> ChatTemplate:
    """The template in a file with the special tokens of a tokenizer's folder, or that folder's own. Raises a data problem."""
    if file is None:
        return folder_template(folder)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"'{file}' cannot be read: {error}"
        raise fail(
            "data",
            message,
            path=("template",),
            help="name a file with a Jinja template, or leave template out",
        ) from None
    return ChatTemplate(text, open_folder(folder).special_tokens, source=file)


def folder_template(folder: Path) -> ChatTemplate:
    """The template of a tokenizer's folder. Raises ProblemsFound where it has none."""
    return ChatTemplate(
        chat_template(folder), open_folder(folder).special_tokens, source=str(folder)
    )


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
