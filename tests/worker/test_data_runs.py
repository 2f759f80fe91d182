"""What a run reads, over kill and resume, whoever reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.test_resume import train
from titanrun.components.metrics.spec.metrics_file import read_metrics

Run = Callable[..., Path]


class BrokenError(Exception):
    """The process ends here."""


def broken_after(step: int) -> Callable[[int], None]:
    def on_step(done: int) -> None:
        if done == step:
            raise BrokenError

    return on_step


def losses(resolved: Path) -> dict[float, float]:
    return {line["step"]: line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")}


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 2])
def test_a_run_that_breaks_off_reads_on_where_it_was_saved_with_and_without_processes(
    before: int, after: int, run: Run
) -> None:
    whole, broken = (
        run("whole"),
        run("broken", "checkpoint.interval=3", f"training.dataloader.num_workers={before}"),
    )
    outcome, expected = train(whole)
    assert outcome.state == "finished"
    with pytest.raises(BrokenError):
        train(broken, on_step=broken_after(8))
    text = broken.read_text()
    broken.write_text(text.replace(f"num_workers: {before}", f"num_workers: {after}", 1))
    _, read = train(broken)
    # of ten steps the last four follow the checkpoint after the sixth
    assert read == expected[6:] and losses(broken) == losses(whole)
