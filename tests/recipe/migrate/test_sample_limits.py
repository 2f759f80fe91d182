"""A number of records, which other programs take of a dataset, is told for the dataset."""

from pathlib import Path

import pytest

from titanrun.recipe.migrate.sample_limits import FEWER_RECORDS, OF_SOURCES, describe_sample_limit

FIRST = (
    "remove it: head -n 50 chats.jsonl > chats_50.jsonl writes a file with the first records; "
    "name it in path: chats_50.jsonl"
)


@pytest.mark.parametrize(
    ("path", "dataset", "told"),
    [
        (("max_samples",), {"name": "chat", "path": "chats.jsonl", "packing": "best_fit"}, FIRST),
        (("training", "max_samples"), {"name": "preference", "path": "chats.jsonl"}, FIRST),
        (("max_samples",), {"name": "chat", "path": "missing.jsonl"}, FEWER_RECORDS),
        (("max_samples",), {"name": "chat", "path": "*.jsonl"}, FEWER_RECORDS),
        (("max_samples",), "tiny_chat", FEWER_RECORDS),
        (
            ("max_train_samples",),
            {"name": "text", "path": "docs.jsonl"},
            "write training.dataset.max_documents: 50",
        ),
        (
            ("max_samples",),
            {"name": "chat", "repo": "me/mine"},
            'write training.dataset.split: "train[:50]"',
        ),
        (("max_samples",), {"name": "mixture", "sources": []}, OF_SOURCES),
        (
            ("validation", "max_samples"),
            {"name": "chat", "path": "chats.jsonl"},
            "write validation.steps: 13, in batches of 4 a rank",
        ),
        (
            ("max-eval-samples",),
            {"name": "chat", "path": "chats.jsonl"},
            "write validation.steps: 13, in batches of 4 a rank",
        ),
    ],
)
def test_a_number_of_records_is_told_for_the_dataset(
    path: tuple[str, ...],
    dataset: object,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text("{}\n")
    data = {"training": {"dataset": dataset, "local_batch_size": 4}}
    assert describe_sample_limit(path, 50, data) == told
