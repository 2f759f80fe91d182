"""Records of a stream that cannot be read and are left out: what a run tells of them."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.components.data.lane_streams import Ranks, same
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound

NUM_FILES, NUM_RECORDS, BAD_EVERY = 4, 96, 8


def write_files(folder: Path, **options: Any) -> TextDatasetConfig:
    for part in range(NUM_FILES):
        lines = [
            "{" if number % BAD_EVERY == 0 else json.dumps({"text": f"<{number}>" * 3})
            for number in range(NUM_RECORDS)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    return TextDatasetConfig(path=str(folder), streaming=True, window=16, **options)


def list_skipped(records: list[logging.LogRecord]) -> list[str]:
    return [
        record.getMessage() for record in records if record.getMessage().startswith("skipped: ")
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_ones_are_logged_and_all_are_counted_over_restarts(
    num_workers: int, tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    config = write_files(tmp_path, bad_records="skip", max_bad_share=0.5)
    ranks = Ranks(config, tokenizer, num_workers=num_workers)
    try:
        assert ranks.loaders[0].collect_metrics()["data/bad_records"] == 0
        ranks.batches(7)
        # of all lanes that a process runs
        skipped = list_skipped(caplog.records)
        assert len(skipped) == 5 * max(1, num_workers)
        assert "jsonl' record 1 column 2 is not JSON" in skipped[0]
        state = ranks.state()
        before = ranks.loaders[0].collect_metrics()["data/bad_records"]
    finally:
        ranks.close()
    fields, cursors = state["fields"], state["cursors"][0]
    # a window of 16 records has two
    num_windows = [one[fields.index("window")] + 6 * one[fields.index("epoch")] for one in cursors]
    assert before == 2 * sum(num_windows) > 0
    resumed = Ranks(config, tokenizer, 2)
    resumed.load(state)
    totals = [loader.collect_metrics()["data/bad_records"] for loader in resumed.loaders]
    assert sum(totals) == before
    # each file once an epoch, whichever lane reads it
    while not all(one[fields.index("epoch")] >= 2 for one in resumed.state()["cursors"][0]):
        resumed.next()
    totals = [loader.collect_metrics()["data/bad_records"] for loader in resumed.loaders]
    assert sum(totals) >= 2 * NUM_FILES * NUM_RECORDS // BAD_EVERY


def test_too_many_are_told_as_what_they_are(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A lane of a small stream has not read 100,000 records."""
    config = write_files(tmp_path, bad_records="skip", max_bad_share=0.0001)
    with pytest.raises(ProblemsFound) as found:
        Ranks(config, tokenizer).batches(60)
    (problem,) = found.value.problems
    assert problem.message.startswith(
        "11 records of a lane cannot be read, more than max_bad_share 0.0001 allows of 100,000; "
        "the last one: '"
    )


def test_a_run_that_one_has_ended_goes_on_without_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = [json.dumps({"text": f"<{number}>" * 3}) for number in range(400)]
    lines[300] = "{"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    files: dict[str, Any] = {"path": str(tmp_path), "streaming": True, "window": 16}
    skipping = TextDatasetConfig(bad_records="skip", **files)
    expected = Ranks(skipping, tokenizer, lanes=1, batch=2).batches(60)
    ended = Ranks(TextDatasetConfig(**files), tokenizer, lanes=1, batch=2)
    found, state = [], ended.state()
    with pytest.raises(ProblemsFound, match="record 301 column 2 is not JSON"):
        while True:
            found.append(ended.next())
            state = ended.state()
    resumed = Ranks(skipping, tokenizer, lanes=1, batch=2)
    resumed.load(state)
    assert len(found) > 5
    assert same([*found, *resumed.batches(60 - len(found))], expected)


def test_a_stream_that_refuses_them_has_no_such_metric(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    config = write_files(tmp_path)
    assert "data/bad_records" not in Ranks(config, tokenizer).loaders[0].collect_metrics()
