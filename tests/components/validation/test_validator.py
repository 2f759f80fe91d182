import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.validation.config import ValidationConfig
from titanrun.components.validation.validator import Validator, ValidatorGroup


@dataclass
class FakeRows:
    """Row r holds 100 r + 0, 1, 2, ..."""

    count: int = 7
    fingerprint: str = ""
    max_token_id: int = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        assert index < self.count
        return 100 * index + np.arange(4, dtype=np.int64)

    def check(self) -> None:
        """Numbers do not change."""


@dataclass
class Output:
    loss_sum: torch.Tensor
    valid_tokens: torch.Tensor
    accuracy_counts: torch.Tensor | None = None


def mean_label(batch: TokenBatch) -> Output:
    """An evaluation whose loss of a token is its label."""
    return Output((batch.labels * batch.label_mask()).sum().float(), batch.num_valid_tokens())


def find_loss(measured: Validator, evaluate: Callable[[Any], Output]) -> float:
    score = measured.validate(evaluate)
    assert score is not None
    return score.loss


def validator(steps: int | None = None, rows: int = 7) -> Validator:
    return Validator(
        ValidationConfig(
            enable=True, dataset="auto", local_batch_size=2, seq_len=3, freq=5, steps=steps
        ),
        dataset=FakeRows(rows),
    )


@pytest.mark.parametrize(("steps", "rows"), [(None, 7), (2, 4), (4, 7), (100, 7), (1, 2)])
def test_the_first_batches_or_the_whole_set_are_read_once(steps: int | None, rows: int) -> None:
    expected = np.concatenate([FakeRows()[index][1:] for index in range(rows)]).mean()
    assert find_loss(validator(steps), mean_label) == pytest.approx(expected)


def test_every_token_weighs_the_same() -> None:
    def first_row_counts_one_token(batch: TokenBatch) -> Output:
        batch.labels[(batch.labels < 100) & (batch.labels > 1)] = IGNORE_INDEX
        return mean_label(batch)

    others = [label for row in range(1, 7) for label in FakeRows()[row][1:]]
    assert find_loss(validator(), first_row_counts_one_token) == pytest.approx(
        np.mean([1, *others])
    )


def test_a_second_validation_sees_the_same_batches() -> None:
    measures = validator(steps=2)
    seen: list[list[list[int]]] = []

    def noting(batch: TokenBatch) -> Output:
        seen.append(batch.tokens.tolist())
        return mean_label(batch)

    assert measures.validate(noting) == measures.validate(noting)
    assert seen[:2] == seen[2:]


def test_a_request_to_stop_breaks_it_off() -> None:
    seen: list[TokenBatch] = []

    def noting(batch: TokenBatch) -> Output:
        seen.append(batch)
        return mean_label(batch)

    assert validator().validate(noting, should_stop=lambda: len(seen) == 2) is None
    assert len(seen) == 2


def test_the_first_the_last_and_every_fifth_step_are_validated() -> None:
    due = [step for step in range(1, 13) if validator().is_due(step, is_last=step == 12)]
    assert due == [1, 5, 10, 12]


class OpenedRows(FakeRows):
    """Rows that note which process opens each of them."""

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        with Path(self.fingerprint).open("a") as file:
            print(os.getpid(), file=file)
        return super().__getitem__(index)


@pytest.mark.parametrize(("stay", "ahead", "processes"), [(True, None, 2), (False, 1, 4)])
def test_processes_read_the_same_rows_as_asked(
    stay: bool, ahead: int | None, processes: int, tmp_path: Path
) -> None:
    loading = DataLoaderConfig(num_workers=2, persistent_workers=stay, prefetch_factor=ahead)
    config = ValidationConfig(
        enable=True, dataset="auto", local_batch_size=2, seq_len=3, freq=5, dataloader=loading
    )
    measured = Validator(config, dataset=OpenedRows(fingerprint=str(tmp_path / "readers")))
    assert [measured.validate(mean_label) for _ in range(2)] == [
        validator().validate(mean_label)
    ] * 2
    measured.close()
    readers = set((tmp_path / "readers").read_text().split())
    assert len(readers) == processes and str(os.getpid()) not in readers


def test_several_sets_are_due_together() -> None:
    first, other = validator(), validator(rows=2)
    both = ValidatorGroup({"validation": first, "validation/code": other})
    assert list(both) == [("validation", first), ("validation/code", other)]
    assert both.is_due(5, is_last=False) and not both.is_due(4, is_last=False)
    both.close()


def test_accuracy_is_a_share_of_all_labels_and_not_a_mean_of_batches() -> None:
    counts = iter([(1, 6), (0, 6), (4, 4), (0, 0)])

    def count(batch: TokenBatch) -> Output:
        plain = mean_label(batch)
        return Output(plain.loss_sum, plain.valid_tokens, torch.tensor(next(counts)))

    score = validator().validate(count)
    assert score is not None and score.accuracy == 5 / 16
    plain = validator().validate(mean_label)
    assert plain is not None and plain.accuracy is None
