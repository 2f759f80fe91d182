"""Rule about epochs that are shorter than one step."""

from collections.abc import Iterator
from contextlib import suppress

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.run_length import describe_short_epochs
from titanrun.recipe.rules.data import matches_existing_path
from titanrun.recipe.rules.holdout import hash_document, is_chosen
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import (
    count_document_tokens,
    count_filled_sequences,
    read_small_records,
)


@rule("epochs-fill-a-step", level="environment")
def epochs_fill_a_step(run: Recipe) -> Iterator[RuleViolation]:
    """Require training.epochs to have the sequences of one global batch.

    Short conversations that are packed fill few sequences. Use more epochs, a smaller
    training.global_batch_size, or more data. Conversations and pairs of small files are counted
    here; other data when it is tokenized.
    """
    training, dataset = run.training, run.training.dataset
    if (
        training.epochs is None
        or training.global_batch_size == "auto"
        or run.rl is not None
        or dataset.is_streamed
        or not isinstance(dataset, ChatDatasetConfig | RepliesConfig)
        or not isinstance(run.tokenizer, TokenizerConfig)
        or dataset.path is None
        or not matches_existing_path(dataset.path)
    ):
        return
    sequences = None
    with suppress(ProblemsFound, OSError, ValueError):
        # other rules and the run name what is wrong with the data
        sequences = count_training_sequences(
            dataset,
            run.tokenizer,
            # a scalar head predicts no next token
            sample_length=training.seq_len + (run.loss.head != "scalar"),
            holdout=run.validation.holdout,
            holdout_by=run.validation.holdout_by,
        )
    size = training.global_batch_size
    if sequences and training.epochs * sequences < size:
        message, hint = describe_short_epochs(
            training.epochs,
            sequences,
            size,
            local_size=training.local_batch_size,
            least=get_least_batch(dataset),
        )
        yield RuleViolation(
            message,
            (("training", "epochs"), ("training", "global_batch_size")),
            hint=hint,
            code="data",
            section=("training",),
        )


def get_least_batch(dataset: DatasetConfig) -> int:
    """Return the smallest global batch: labelled replies are compared with those of others."""
    return 2 if dataset.compares == "labels" else 1


def count_training_sequences(
    dataset: ChatDatasetConfig | RepliesConfig,
    tokenizer: TokenizerConfig,
    *,
    sample_length: int,
    holdout: float | None = None,
    holdout_by: str | None = None,
) -> int | None:
    """Return the number of sequences of an epoch without what is held out.

    Return None of data that is not read before a run.

    Raises:
        ProblemsFound: If the records, the template or the tokenizer cannot be read.
    """
    records = None if dataset.path is None else read_small_records(dataset.path)
    lengths = None if records is None else count_document_tokens(dataset, tokenizer, records)
    if records is None or lengths is None:
        return None
    if holdout is not None:
        hashes = [hash_document(dataset, record, place, holdout_by) for place, record in records]
        held = is_chosen(holdout, hashes)
        lengths = [of_record for of_record, is_out in zip(lengths, held, strict=True) if not is_out]
    documents = [length for of_record in lengths for length in of_record]
    return count_filled_sequences(dataset, documents, sample_length=sample_length)
