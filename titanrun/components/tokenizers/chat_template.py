"""Chat templates: the Jinja template of a tokenizer's folder.

It renders conversations in the format that a chat model was trained on.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from titanrun.components.tokenizers.spec.tokenizer_files import (
    load_chat_template_text,
    open_tokenizer_folder,
)
from titanrun.config.problems import ProblemsFound, problem_error

Message = dict[str, Any]
Span = tuple[int, int]
"""Start and end in characters."""
# two code points that Unicode reserves as noncharacters, so that texts do not contain them
REPLY_START, REPLY_END = "\ufdd0", "\ufdd1"
# a template computes with arbitrary values of the messages
TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class GenerationBlock(Extension):
    """The block `{% generation %}`, by which templates for transformers mark assistant text."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block with a mark on each side of its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark_reply"), [], [], body).set_lineno(line)

    def _mark_reply(self, caller: Callable[[], str]) -> str:
        """Return the text of a block between two marks."""
        return f"{REPLY_START}{caller()}{REPLY_END}"


class ChatTemplate:
    """Compiled template for many conversations.

    It is sandboxed, and has no access to the date, so that data stays the same.

    Args:
        text: Text of the template.
        special_tokens: Text of the special tokens by their role, such as bos_token.
        source: Name for messages.
    """

    def __init__(self, text: str, special_tokens: dict[str, str], *, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(
            value, ensure_ascii=False, **options
        )
        environment.globals["raise_exception"] = raise_template_error
        self._special, self._source = special_tokens, source
        self.digest = hashlib.sha256(json.dumps([text, special_tokens]).encode()).hexdigest()
        try:
            self._template = environment.from_string(text)
        except TEMPLATE_ERRORS as error:
            raise problem_error(
                "data",
                f"the chat template of '{source}' cannot be read: {error}",
                path=("template",),
                hint="write it again",
            ) from None

    def __str__(self) -> str:
        return f"the chat template of '{self._source}'"

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, equal to transformers' apply_chat_template."""
        return (
            self._render(messages, add_generation_prompt)
            .replace(REPLY_START, "")
            .replace(REPLY_END, "")
        )

    def render_with_reply_spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Return the text of a conversation and the spans that the template marks as replies.

        Without marks, there are no spans.
        """
        pieces = self._render(messages, False).replace(REPLY_END, REPLY_START).split(REPLY_START)
        spans, end = [], 0
        for number, piece in enumerate(pieces):
            if number % 2:
                spans.append((end, end + len(piece)))
            end += len(piece)
        return "".join(pieces), spans

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except TEMPLATE_ERRORS as error:
            message = f"{self} rejects the messages: {error}"
            raise problem_error(
                "data",
                message,
                path=("template",),
                hint="change the messages, or use a template that supports them",
            ) from None


def compute_reply_spans(
    template: ChatTemplate, messages: list[Message], text: str, location: str
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
                path=("template",),
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
            path=("template",),
            hint="remove the role from role_weights, or use another template",
        )
    return len(before), len(through)


def check_template_renders_messages(
    template: ChatTemplate, messages: Sequence[Message], location: str
) -> None:
    """Check that a template accepts messages and renders each of them.

    A role that the template does not support may be rejected or ignored. A message without content,
    or with tool calls, which may replace it, is not checked.

    Raises:
        ProblemsFound: A data problem for rejected or ignored messages.
    """
    roles = ", ".join(dict.fromkeys(str(message["role"]) for message in messages))
    try:
        text = template.render(messages)
    except ProblemsFound as found:
        problem = found.problems[0]
        raise problem_error(
            "data",
            f"{problem.message}; {location} has messages from: {roles}",
            path=problem.path,
            hint=problem.hint,
        ) from None
    for number, message in enumerate(messages):
        if not message["content"].strip() or message.get("tool_calls"):
            continue
        # on both sides: a template may render only the beginning or only the end of a message
        other = {**message, "content": f"x{message['content']}x"}
        try:
            unread = template.render([*messages[:number], other, *messages[number + 1 :]]) == text
        except ProblemsFound:
            unread = False  # it was read, but the changed message is not valid for the template
        if unread:
            text_problem = (
                f"{template} omits message {number + 1} of {location}, "
                f"which is from '{message['role']}'"
            )
            raise problem_error(
                "data",
                text_problem,
                path=("template",),
                hint="use a template that supports this role, or remove such messages",
            )


def load_chat_template(file: str | None, folder: Path) -> ChatTemplate:
    """Return the template in a file with the special tokens of a folder, or the folder's own.

    Raises:
        ProblemsFound: A data problem if the template cannot be read.
    """
    if file is None:
        return load_folder_chat_template(folder)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"'{file}' cannot be read: {error}"
        raise problem_error(
            "data",
            message,
            path=("template",),
            hint="name a file with a Jinja template, or remove template",
        ) from None
    return ChatTemplate(text, open_tokenizer_folder(folder).special_tokens, source=file)


def load_folder_chat_template(folder: Path) -> ChatTemplate:
    """Return the template of a tokenizer's folder. Raise ProblemsFound if it has none."""
    return ChatTemplate(
        load_chat_template_text(folder),
        open_tokenizer_folder(folder).special_tokens,
        source=str(folder),
    )


def apply_chat_template(
    folder: Path, messages: Sequence[Message], *, add_generation_prompt: bool
) -> str:
    """Return the text of a conversation, equal to transformers' apply_chat_template.

    Args:
        folder: Tokenizer folder with the template.
        messages: Messages with `role` and `content`.
        add_generation_prompt: Whether to append the beginning of the assistant's next turn.

    Raises:
        ProblemsFound: If the folder has no template, or the template rejects the messages.
    """
    return load_folder_chat_template(folder).render(
        messages, add_generation_prompt=add_generation_prompt
    )


def raise_template_error(message: str) -> None:
    """Raise the error of a template for messages that it cannot render."""
    raise TemplateError(message)
