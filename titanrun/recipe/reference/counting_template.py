"""The chat template by which the records of a fine-tuning recipe are counted."""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.config.registry import validate_choice
from titanrun.recipe.rules.chat import parse_conversations
from titanrun.recipe.rules.empty_replies import list_first_records


def find_counting_template(settings: Mapping[str, Any], folder: Path) -> str | None:
    """Return the template that the help names where the folder's own rejects the first record.

    Return None to count with the folder's own.

    Args:
        settings: Settings of the dataset.
        folder: Folder of the model and its tokenizer.
    """
    with suppress(ProblemsFound, OSError, ValueError):
        # validate names what is wrong with the data
        dataset = validate_choice(DatasetConfig, settings)
        if isinstance(dataset, ChatDatasetConfig | RepliesConfig) and dataset.path is not None:
            return suggest_fitting_template(dataset, dataset.path, folder)
    return None


def suggest_fitting_template(
    dataset: ChatDatasetConfig | RepliesConfig, named: str, folder: Path
) -> str | None:
    """Return a template that renders the first record, None if the folder's own does."""
    # jinja is imported only if there are conversations
    templates = import_module("titanrun.components.tokenizers.chat_template")
    fitting = import_module("titanrun.components.tokenizers.fitting_template")
    template = templates.load_chat_template(HuggingFaceTokenizerConfig(path=str(folder)))
    for record in list_first_records(named)[:1]:
        conversation = parse_conversations(dataset, record, "")[0]
        bound = template.with_tools(conversation.tools)
        try:
            templates.check_template_renders_messages(bound, conversation.messages, "")
        except ProblemsFound:
            found: str | None = fitting.find_fitting_template(folder, conversation)
            return found
    return None
