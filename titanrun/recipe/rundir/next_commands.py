"""The line with commands to type after one."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from titanrun.components.tokenizers.spec.tokenizer_files import load_chat_template_text
from titanrun.config.problems import ProblemsFound

PROMPT = "Once upon a time"
# between two commands in a line
GAP = "     "


def format_commands(*commands: Sequence[str]) -> str:
    """Format the line with one command, or several to choose from, quoted for a shell."""
    return "next: " + GAP.join(shlex.join(["titanrun", *words]) for words in commands)


def choose_text_command(place: str, folder: Path) -> list[str]:
    """Return the command that uses a language model.

    A model with a chat template converses, another continues a prompt.

    Args:
        place: What the command names.
        folder: Folder with the model's chat template.
    """
    try:
        load_chat_template_text(folder)
    except ProblemsFound:
        return ["generate", place, "--prompt", PROMPT]
    return ["chat", place]
