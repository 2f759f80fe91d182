"""Samples become batches."""

import numpy as np
import pytest

from titanrun.components.data.token_collator import TokenCollator
from titanrun.config.problems import ProblemsFound

SAMPLES = np.arange(15, dtype=np.int64).reshape(3, 5)


@pytest.mark.parametrize("num_counted", [0, 1, 2, 3])
def test_only_the_first_samples_of_a_validation_batch_count(num_counted: int) -> None:
    batch = TokenCollator().collate_validation(SAMPLES, num_counted=num_counted)
    assert batch.tokens.tolist() == SAMPLES[:, :-1].tolist()
    assert batch.label_mask().any(1).tolist() == [row < num_counted for row in range(3)]
    assert batch.num_valid_tokens().item() == 4 * num_counted


def test_a_training_batch_is_split_into_local_ones_in_order() -> None:
    batches = TokenCollator().collate_train(SAMPLES, 2)
    assert [batch.tokens.tolist() for batch in batches] == [
        SAMPLES[:2, :-1].tolist(),
        SAMPLES[2:, :-1].tolist(),
    ]
    assert all(batch.label_mask().all() for batch in batches)


def test_an_id_is_refused_from_the_vocabulary_size_on() -> None:
    assert len(TokenCollator(15).collate_train(SAMPLES, 3)) == 1
    with pytest.raises(ProblemsFound, match="14"):
        TokenCollator(14).collate_train(SAMPLES, 3)
