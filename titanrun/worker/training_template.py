"""The chat template that a run trains with, for what generates from it or exports it."""

import logging
from pathlib import Path

from titanrun.components.data.config import ChatDatasetConfig, PreferenceDatasetConfig
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.nested_problems import nest_problems
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets

log = logging.getLogger(__name__)


def find_training_template(recipe: Recipe) -> Path | None:
    """Return the template file that the training data names, or None for the tokenizer's own.

    Several different ones in a mixture are None, too, with a warning.
    """
    if recipe.kind == "rl":
        return None
    trained = (ChatDatasetConfig, PreferenceDatasetConfig)
    named = {
        dataset.template
        for path, dataset in get_all_datasets(recipe)
        if path[0] == "training" and isinstance(dataset, trained)
    }
    if len(named) > 1:
        log.warning("the data was trained with several chat templates; taking the tokenizer's own")
        return None
    template = next(iter(named), None)
    return None if template is None else Path(template)


def load_training_template(recipe: Recipe) -> ChatTemplate:
    """Return the chat template that the run trains with.

    Raises:
        ProblemsFound: A data problem if there is none, or it cannot be read.
    """
    assert isinstance(recipe.tokenizer, TokenizerConfig), "conversations require a tokenizer"
    file = find_training_template(recipe)
    with nest_problems(("tokenizer",) if file is None else ("training", "dataset")):
        return load_chat_template(None if file is None else str(file), recipe.tokenizer.folder)
