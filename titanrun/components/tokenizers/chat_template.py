"""Chat templates: the Jinja template of a tokenizer's folder.

It renders conversations in the format that a chat model was trained on.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from titanrun.components.data.spec.chat_content import REASONING_KEYS, Message, join_parts
from titanrun.components.tokenizers.spec.named_templates import (
    TEMPLATE_TOKENS,
    get_template_path,
)
from titanrun.components.tokenizers.spec.tokenizer_files import (
    load_chat_template_text,
    open_tokenizer_folder,
)
from titanrun.components.tokenizers.template_budget import TemplateBudget
from titanrun.components.tokenizers.template_sandbox import BoundedEnvironment
from titanrun.components.tokenizers.tokenizer_protocol import TemplateSource
from titanrun.config.problems import ProblemsFound, problem_error

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
    # of the code that jinja2 generates: too many nested loops
    SyntaxError,
)
MAX_TEMPLATE_CHARACTERS = 2**20
# roles of a conversation that a message lists
MAX_ROLES_LISTED = 12
TEMPLATE_PATH = ("tokenizer", "chat_template")


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

    It is sandboxed, and has no access to the date, so that data stays the same. Its time and memory
    are bounded (template_budget.py).

    Args:
        text: Text of the template.
        special_tokens: Text of the special tokens by their role, such as bos_token.
        source: Name for messages.
    """

    def __init__(self, text: str, special_tokens: dict[str, str], *, source: str) -> None:
        self._text, self._special, self._source = text, special_tokens, source
        self._tools: Sequence[Message] | None = None
        self.digest = hashlib.sha256(json.dumps([text, special_tokens]).encode()).hexdigest()
        self._compiled = threading.local()
        self._compile()

    def __str__(self) -> str:
        return f"the chat template of '{self._source}'"

    def with_tools(self, tools: Sequence[Message] | None) -> "ChatTemplate":
        """Return this template for conversations with tools, as JSON schemas of functions."""
        if tools is None and self._tools is None:
            return self
        bound = copy(self)
        bound._tools = tools
        return bound

    def _compile(self) -> tuple[Template, TemplateBudget]:
        """Return the compiled template and its budget; each thread has its own."""
        found: tuple[Template, TemplateBudget] | None = getattr(self._compiled, "found", None)
        if found is None:
            try:
                check_template_length(self._text)
                environment = build_environment()
                found = environment.from_string(self._text), environment.budget
            except TEMPLATE_ERRORS as error:
                raise problem_error(
                    "data",
                    f"the chat template of '{self._source}' cannot be read: {error}",
                    path=TEMPLATE_PATH,
                    is_absolute=True,
                    hint="write it again",
                ) from None
            self._compiled.found = found
        return found

    @cached_property
    def reads_parts(self) -> bool:
        """Whether the template renders a content of text parts like the text itself."""
        plain, parts = (
            {"role": "user", "content": content}
            for content in ("xyzzy", [{"type": "text", "text": "xyzzy"}])
        )
        try:
            return self._render([plain], False) == self._render([parts], False)
        except ProblemsFound:
            return False

    @cached_property
    def blank_before_replies(self) -> str:
        """White space between the text that opens a reply and the reply's content.

        A model that was trained with it generates it, but it is not part of the content.
        """
        talk: list[Message] = [{"role": "user", "content": "x"}]
        try:
            opened = self.render(talk, add_generation_prompt=True)
            whole = self.render([*talk, {"role": "assistant", "content": "xyzzy"}])
        except ProblemsFound:
            return ""
        between = whole.removeprefix(opened).partition("xyzzy")[0]
        return between if whole.startswith(opened) and between.isspace() else ""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, equal to transformers' apply_chat_template.

        Text parts are joined for a template that reads texts only.
        """
        return (
            self._render(self._prepare(messages), add_generation_prompt)
            .replace(REPLY_START, "")
            .replace(REPLY_END, "")
        )

    def render_with_reply_spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Return the text of a conversation and the spans that the template marks as replies.

        Without marks, there are no spans.
        """
        text = self._render(self._prepare(messages), False)
        pieces = text.replace(REPLY_END, REPLY_START).split(REPLY_START)
        spans, end = [], 0
        for number, piece in enumerate(pieces):
            if number % 2:
                spans.append((end, end + len(piece)))
            end += len(piece)
        return "".join(pieces), spans

    def _prepare(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template reads them."""
        has_parts = any(isinstance(message["content"], list) for message in messages)
        joined = has_parts and not self.reads_parts
        return [
            alias_reasoning(
                {**message, "content": join_parts(message["content"])}
                if joined and isinstance(message["content"], list)
                else message
            )
            for message in messages
        ]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        program, budget = self._compile()
        budget.start((messages, self._tools))
        try:
            return program.render(
                messages=list(messages),
                tools=self._tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except TEMPLATE_ERRORS as error:
            message = f"{self} rejects the messages: {error}"
            raise problem_error(
                "data",
                message,
                path=TEMPLATE_PATH,
                is_absolute=True,
                hint="change the messages, or name a template that supports them in "
                "tokenizer.chat_template",
            ) from None


def check_template_renders_messages(
    template: ChatTemplate, messages: Sequence[Message], location: str
) -> None:
    """Check that a template accepts messages and renders each of them.

    A role that the template does not support may be rejected or ignored, and so may tool calls. The
    content of a message with tool calls, which may replace it, is not checked.

    Raises:
        ProblemsFound: A data problem for rejected or ignored messages or tool calls.
    """
    # in their order, in which they may have to alternate
    roles = ", ".join(str(message["role"]) for message in messages[:MAX_ROLES_LISTED])
    roles += ", ..." if len(messages) > MAX_ROLES_LISTED else ""
    try:
        text = template.render(messages)
    except ProblemsFound as found:
        problem = found.problems[0]
        raise problem_error(
            "data",
            f"{problem.message}; {location} has messages from: {roles}",
            path=problem.path,
            hint=problem.hint,
            is_absolute=problem.is_absolute,
        ) from None
    for number, message in enumerate(messages):
        calls, content = message.get("tool_calls"), join_parts(message["content"])
        if not content.strip() and not calls:
            continue
        # on both sides: a template may render only the beginning or only the end of a message
        other = {**message, **(rename_tool_calls(calls) if calls else {"content": f"x{content}x"})}
        try:
            unread = template.render([*messages[:number], other, *messages[number + 1 :]]) == text
        except ProblemsFound:
            unread = False  # it was read, but the changed message is not valid for the template
        if unread:
            omitted, unsupported = (
                ("the tool calls of ", "tool calls") if calls else ("", "this role")
            )
            text_problem = (
                f"{template} omits {omitted}message {number + 1} of {location}, "
                f"which is from '{message['role']}'"
            )
            raise problem_error(
                "data",
                text_problem,
                path=TEMPLATE_PATH,
                is_absolute=True,
                hint=f"set tokenizer.chat_template to one with {unsupported}, or remove them",
            )


def rename_tool_calls(calls: Sequence[Message]) -> Message:
    """Return the key of tool calls with calls of functions of other names."""
    renamed = [
        {**call, "name": "xyzzy", "function": {**(call.get("function") or {}), "name": "xyzzy"}}
        for call in calls
    ]
    return {"tool_calls": renamed}


def alias_reasoning(message: Message) -> Message:
    """Return a message with its reasoning under the names of all templates, as transformers."""
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def format_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the JSON text of a value, with the parameters of transformers' filter tojson."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def load_chat_template(source: TemplateSource) -> ChatTemplate:
    """Return the template of a tokenizer or its config: the one that it names, or its folder's.

    Raises:
        ProblemsFound: A data problem if the template cannot be read.
    """
    written = source.chat_template
    if written is None:
        return load_folder_chat_template(source.folder)
    special_tokens = open_tokenizer_folder(source.folder).special_tokens
    return ChatTemplate(read_chat_template(written), special_tokens, source=written)


def read_chat_template(written: str) -> str:
    """Return the text of the template that a recipe names.

    Raises:
        ProblemsFound: A data problem at the tokenizer's chat_template if it cannot be read.
    """
    path = get_template_path(written) if written in TEMPLATE_TOKENS else Path(written)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise problem_error(
            "data",
            f"'{written}' cannot be read: {error}",
            path=TEMPLATE_PATH,
            hint="name a file with a Jinja template, or remove chat_template, with the section "
            "tokenizer if it holds nothing else",
            is_absolute=True,
        ) from None


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


def build_environment() -> BoundedEnvironment:
    """Build the environment that compiles a template, with what transformers gives to templates."""
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = format_json
    environment.globals["raise_exception"] = raise_template_error
    environment.close_filters()
    return environment


def check_template_length(text: str) -> None:
    """Raise ValueError if a template is too long to be compiled in a reasonable time."""
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise ValueError(f"it has more than {MAX_TEMPLATE_CHARACTERS:,} characters")


def raise_template_error(message: str) -> None:
    """Raise the error of a template for messages that it cannot render."""
    raise TemplateError(message)
