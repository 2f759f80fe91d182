"""A resumed run says that its schedule gives other learning rates than before."""

from collections.abc import Callable
from pathlib import Path

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.worker.build.schedule_change import find_last_rate
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
COSINE = "lr_scheduler={name: cosine, warmup_steps: 1, total_steps: %d}"


def train_in_two_parts(run: Run, first_end: int) -> tuple[list[float], list[str]]:
    """Train 3 steps, then 3 more under a schedule of 6: the rates, and lines on a schedule."""
    lengths = {3: first_end, 6: 6}
    for steps, end in lengths.items():
        resolved = run("run", f"training.steps={steps}", COSINE % end)
        assert main([str(resolved)]) == 0
    rates = [line["lr"] for line in read_metrics(resolved.parent / "metrics.jsonl")]
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    lines = [line.partition("INFO ")[2] for line in log.splitlines()]
    return rates, [line for line in lines if line.startswith("lr was ")]


def test_a_schedule_that_is_stretched_says_from_which_rate_to_which(run: Run) -> None:
    rates, lines = train_in_two_parts(run, 3)
    assert rates[3] > rates[2]
    assert lines == [
        f"lr was {rates[2]:.3e} at step 3 and is {rates[3]:.3e} at step 4, by a schedule with peak "
        "0.01 that ends at step 6"
    ]


def test_a_run_that_goes_on_by_its_schedule_says_nothing(run: Run) -> None:
    rates, lines = train_in_two_parts(run, 6)
    assert rates[3] < rates[2]
    assert lines == []


def test_the_last_logged_rate_may_be_of_an_earlier_step() -> None:
    lines = [{"step": step, "lr": step / 10} for step in (1, 5, 10)] + [{"step": 7, "loss": 1.0}]
    assert find_last_rate(lines, 7) == (5, 0.5)
    assert find_last_rate(lines, 0) is None
