"""The chat template that a run trains with, for what generates from it or exports it."""

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.end_of_turn import find_end_tokens, find_turn_end
from titanrun.components.tokenizers.spec.named_templates import is_template_file
from titanrun.components.tokenizers.spec.stop_tokens import load_special_token_texts
from titanrun.components.tokenizers.spec.tokenizer_files import (
    CHAT_TEMPLATE,
    TOKENIZER_CONFIG,
    load_vocab,
)
from titanrun.config.nested_problems import nest_problems
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets


def find_training_end_ids(recipe: Recipe) -> frozenset[int]:
    """Return the ids at which generation stops, beside those that the tokenizer's folder names.

    These are the tokenizer's `stop_tokens`, and the tokens that end the replies that the run trains
    on, if it trains on conversations.

    Raises:
        ProblemsFound: A data problem if the template or the tokenizer cannot be read.
    """
    if not isinstance(recipe.tokenizer, TokenizerConfig):
        return frozenset()
    if not trains_replies(recipe):
        return find_stop_token_ids(recipe.tokenizer)
    found = find_end_tokens(load_training_template(recipe), recipe.tokenizer)
    ids = load_vocab(recipe.tokenizer.folder)
    return frozenset(ids[text] for text in found if text in ids)


def trains_replies(recipe: Recipe) -> bool:
    """Return whether the run trains on conversations or on replies, by a chat template."""
    return any(
        path[0] == "training" and isinstance(dataset, ConversationsConfig | RepliesConfig)
        for path, dataset in get_all_datasets(recipe)
    )


def describe_training_template(recipe: Recipe) -> str:
    """Describe the chat template that a run trains with, where it is and how it ends replies.

    Example: `chat template: chatml of titanrun, replies end with <|im_end|>`.

    Raises:
        ProblemsFound: A data problem if the template or the tokenizer cannot be read.
    """
    assert isinstance(recipe.tokenizer, TokenizerConfig), "conversations require a tokenizer"
    name, folder = recipe.tokenizer.chat_template, recipe.tokenizer.folder
    if name is None:
        file = CHAT_TEMPLATE if (folder / CHAT_TEMPLATE).is_file() else TOKENIZER_CONFIG
        place = f"{folder / file}"
    else:
        place = name if is_template_file(name) else f"{name} of titanrun"
    texts = load_special_token_texts(folder)
    end = find_turn_end(load_training_template(recipe), texts)
    ending = "" if end is None or end.token is None else f", replies end with {end.token}"
    return f"chat template: {place}{ending}"


def find_stop_token_ids(tokenizer: TokenizerConfig) -> frozenset[int]:
    """Return the ids of the tokenizer's `stop_tokens`.

    Raises:
        ProblemsFound: A data problem if the tokenizer cannot be read.
    """
    if not tokenizer.stop_tokens:
        return frozenset()
    ids = load_vocab(tokenizer.folder)
    return frozenset(ids[text] for text in tokenizer.stop_tokens if text in ids)


def load_training_template(recipe: Recipe) -> ChatTemplate:
    """Return the chat template that the run trains with.

    Raises:
        ProblemsFound: A data problem if there is none, or it cannot be read.
    """
    assert isinstance(recipe.tokenizer, TokenizerConfig), "conversations require a tokenizer"
    with nest_problems(("tokenizer",)):
        return load_chat_template(recipe.tokenizer)
