"""Which rank is slow, by the times that ranks tell each other."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from titanrun.training import stragglers
from titanrun.training.stragglers import StragglerWatch, others_median


@dataclass
class Told:
    """Ranks that tell what a test wants them to, and how often they were asked."""

    times: list[tuple[int, float]]
    count: int = 4
    rank: int = 0
    asked: list[Any] = field(default_factory=list)

    def together(self, work: Any) -> list[tuple[int, float]]:
        self.asked.append(work())
        return self.times


def run_steps(watch: StragglerWatch, first: int, last: int) -> None:
    for step in range(first, last + 1):
        watch.begin_step()
        watch.begin_passes()
        watch.after_step(step)


def test_a_rank_that_stays_slow_is_named_within_20_steps_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = StragglerWatch(1.3, ranks=Told([(0, 1.0), (0, 1.0), (0, 1.5), (0, 1.02)]))  # type: ignore[arg-type]
    run_steps(watch, 1, 20)
    assert watch.take() == {"guard/slow_rank": 2, "guard/slow_rank_ratio": 1.5}
    assert watch.take() == {}
    run_steps(watch, 21, 60)
    assert caplog.text.count("is slow") == 1
    assert (
        "rank 2 is slow at step 15: its own work takes 1.5 s of a step, the others' 1 s"
        in caplog.text
    )


def test_slow_for_a_moment_is_not_slow() -> None:
    told = Told([(0, 9.0), (0, 1.0)])
    watch = StragglerWatch(1.3, ranks=told)  # type: ignore[arg-type]
    run_steps(watch, 1, 10)
    told.times = [(0, 1.0), (0, 1.0)]
    run_steps(watch, 11, 15)
    told.times = [(0, 9.0), (0, 1.0)]
    run_steps(watch, 16, 20)
    assert watch.take() == {}


def test_stages_are_compared_with_their_like_only() -> None:
    told = [(0, 1.0), (0, 1.1), (1, 3.0), (1, 3.2), (2, 9.0)]
    assert [others_median(rank, told) for rank in range(5)] == [1.1, 1.0, 3.2, 3.0, 0.0]


def test_what_a_rank_tells_is_the_time_of_its_layers_and_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("titanrun.distributed.stopwatch.time.perf_counter", lambda: now[0])

    class Layer(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            now[0] += 2.0
            return super().forward(input)

    model = nn.Module()
    model.layers = nn.ModuleDict({"0": Layer(2, 2), "1": Layer(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = Told([(0, 1.0), (0, 1.0)])
    watch = StragglerWatch(1.3, ranks=told)  # type: ignore[arg-type]
    watch.attach(model, optimizer)
    for step in range(1, 2 * stragglers.WINDOW + 1):
        watch.begin_step()
        now[0] += 1.0  # rows
        watch.begin_passes()
        now[0] += 100.0  # waiting for others
        for layer in model.layers.values():
            layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        watch.after_step(step)
    assert told.asked == [(0, 5.0)]


def test_nothing_is_measured_where_nobody_asked_or_there_is_one_rank() -> None:
    for watch in (StragglerWatch(None, ranks=Told([])), StragglerWatch(1.3)):  # type: ignore[arg-type]
        run_steps(watch, 1, 30)
        assert watch.take() == {}
