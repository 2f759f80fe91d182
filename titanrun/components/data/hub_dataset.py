"""Sequences of documents from the Hugging Face Hub at one commit.

They are tokenized once into an index.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.config import HubConfig
from titanrun.components.data.document_index import open_revision_index
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.record_source import find_hub_source
from titanrun.components.data.text_dataset import build_sequences
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.lazy_module import LazyModule

if TYPE_CHECKING:
    from titanrun.components.data import hub_records
else:
    # imported only to build an index: it takes more than a second to import
    hub_records = LazyModule("titanrun.components.data.hub_records")


def build_hub_dataset(
    config: HubConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the sequences of the documents of one split.

    Contacts the Hub only if no index exists: a commit never changes.

    Raises:
        ProblemsFound: A data problem if the Hub does not return them, with a path relative to the
            dataset's config.
    """
    source = find_hub_source(config)
    assert source is not None, "it has a repo"
    # no more is fetched than is read
    hub = replace(source, streaming=config.max_documents is not None)
    index = open_revision_index(
        config,
        lambda: hub_records.iter_hub_records(hub),
        source=hub.name,
        source_key=hub.key,
        tokenizer=tokenizer,
        cache_folder=cache_folder,
        holdout=holdout,
    )
    return build_sequences(
        config, index, sample_length=sample_length, source=hub.name, holdout=holdout
    )
