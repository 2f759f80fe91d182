"""What a user says, in the words that a chat model was trained on: the Jinja template of a tokenizer's folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from titanrun.components.tokenizers.vocabulary import open_folder
from titanrun.config.problems import fail

Message = dict[str, Any]
FILE = "chat_template.jinja"


def rendered(folder: Path, messages: Sequence[Message], *, with_reply_opened: bool) -> str:
    """The text of a conversation by the folder's template, as transformers' apply_chat_template gives it.

    Args:
        folder: of a tokenizer.
        messages: each with `role` and `content`.
        with_reply_opened: whether the beginning of the assistant's next turn follows.

    Raises ProblemsFound where the folder has no template, or the template refuses the messages. A template cannot reach beyond its text.
    """
    text = template_of(folder)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    try:
        special = open_folder(folder).special_tokens
        return environment.from_string(text).render(messages=list(messages), add_generation_prompt=with_reply_opened, **special)
    except TemplateError as error:
        raise fail("data", f"the chat template of {folder} refuses the messages: {error}") from None


def template_of(folder: Path) -> str:
    """The template, from its own file or from tokenizer_config.json; of several the one called `default`."""
    if (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="utf-8")
    found = open_folder(folder).settings.get("chat_template")
    if isinstance(found, list):
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    if not isinstance(found, str):
        raise fail("data", f"the tokenizer in {folder} has no chat template", help=f"put one into {folder / FILE}, or leave out the chat")
    return found


def refuse(message: str) -> None:
    """What a template calls for messages that it cannot put into words."""
    raise TemplateError(message)
