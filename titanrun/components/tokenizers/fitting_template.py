"""Chat templates that ship with titanrun, for conversations that a tokenizer's own rejects."""

from dataclasses import replace
from pathlib import Path

from titanrun.components.data.spec.chat_formats import Conversation
from titanrun.components.tokenizers.chat_template import (
    ChatTemplate,
    check_template_renders_messages,
    read_chat_template,
)
from titanrun.components.tokenizers.spec.named_templates import suggest_template_names
from titanrun.components.tokenizers.spec.tokenizer_files import load_vocab, open_tokenizer_folder
from titanrun.config.problems import ProblemsFound


def check_template_or_suggest(
    template: ChatTemplate, conversation: Conversation, location: str, *, folder: Path
) -> None:
    """Check that a template renders each message, and name one that does if it does not.

    That is one that ships with titanrun and whose tokens the tokenizer in `folder` has.

    Raises:
        ProblemsFound: A data problem for rejected or ignored messages or tool calls.
    """
    try:
        check_template_renders_messages(template, conversation.messages, location)
    except ProblemsFound as found:
        name = find_fitting_template(folder, conversation)
        if name is None:
            raise
        hint = f"set tokenizer.chat_template: {name}, which renders them, or change the messages"
        raise ProblemsFound(replace(problem, hint=hint) for problem in found.problems) from None


def find_fitting_template(folder: Path, conversation: Conversation) -> str | None:
    """Return the name of the first template that renders all messages, None if none does."""
    try:
        special_tokens = open_tokenizer_folder(folder).special_tokens
        names = suggest_template_names(load_vocab(folder))
    except ProblemsFound:
        return None
    for name in names:
        template = ChatTemplate(read_chat_template(name), special_tokens, source=name)
        bound = template.with_tools(conversation.tools)
        try:
            check_template_renders_messages(bound, conversation.messages, name)
        except ProblemsFound:
            continue
        return name
    return None
