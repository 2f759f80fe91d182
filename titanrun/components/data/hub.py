"""Rows of documents from the Hugging Face Hub, at one commit, tokenised once into an index."""

from importlib import import_module
from pathlib import Path

from titanrun.components.data.config import HubConfig
from titanrun.components.data.index import open_pinned
from titanrun.components.data.rows import Rows
from titanrun.components.data.text import shaped
from titanrun.components.tokenizers.tokenizer import Tokenizer

READER = "titanrun.components.data.hub_records"
"""Imported only when an index is built, since it takes more than a second to import."""


def hub_rows(
    config: HubConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> Rows:
    """Rows of the documents of one split. The Hub is asked only where no index is there: a commit never changes.

    Raises a data problem, placed relative to the dataset's config, where the Hub does not give them.
    """
    source = f"{config.repo} {config.subset or ''} {config.split}@{config.revision[:12]}".replace(
        "  ", " "
    )
    pinned = [config.repo, config.subset or "", config.split, config.revision]
    index = open_pinned(
        config,
        lambda scratch: import_module(READER).hub_records(config),
        source=source,
        pinned=pinned,
        tokenizer=tokenizer,
        cache_folder=cache_folder,
    )
    return shaped(config, index, row_length=row_length, source=source)
