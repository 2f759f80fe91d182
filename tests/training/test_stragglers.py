"""Which rank is slow, by the times that ranks tell each other."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from titanrun.training import stragglers
from titanrun.training.stragglers import StragglerDetector, compute_peer_median


@dataclass
class Told:
    """Ranks that tell what a test wants them to, and how often they were asked."""

    times: list[tuple[int, float]]
    size: int = 4
    rank: int = 0
    pending_batches: list[Any] = field(default_factory=list)

    def all_gather_results(self, work: Any) -> list[tuple[int, float]]:
        self.pending_batches.append(work())
        return self.times


def run_steps(watch: StragglerDetector, first: int, last: int) -> None:
    for step in range(first, last + 1):
        watch.mark_step_start()
        watch.mark_collectives_start()
        watch.after_step(step)


def test_a_rank_that_stays_slow_is_named_within_20_steps_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = StragglerDetector(1.3, rank_group=Told([(0, 1.0), (0, 1.0), (0, 1.5), (0, 1.02)]))  # type: ignore[arg-type]
    run_steps(watch, 1, 20)
    assert watch.pop_metrics() == {"guard/slow_rank": 2, "guard/slow_rank_ratio": 1.5}
    assert watch.pop_metrics() == {}
    run_steps(watch, 21, 60)
    assert caplog.text.count("straggler: ") == 1
    assert (
        "straggler: rank 2 at step 15 computes 1.5 s per step, the median of the other ranks is 1 s"
        in caplog.text
    )


def test_slow_for_a_moment_is_not_slow() -> None:
    told = Told([(0, 9.0), (0, 1.0)])
    watch = StragglerDetector(1.3, rank_group=told)  # type: ignore[arg-type]
    run_steps(watch, 1, 10)
    told.times = [(0, 1.0), (0, 1.0)]
    run_steps(watch, 11, 15)
    told.times = [(0, 9.0), (0, 1.0)]
    run_steps(watch, 16, 20)
    assert watch.pop_metrics() == {}


def test_stages_are_compared_with_their_like_only() -> None:
    told = [(0, 1.0), (0, 1.1), (1, 3.0), (1, 3.2), (2, 9.0)]
    assert [compute_peer_median(rank, told) for rank in range(5)] == [1.1, 1.0, 3.2, 3.0, 0.0]


def test_what_a_rank_tells_is_the_time_of_its_layers_and_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("titanrun.distributed.device_timer.time.perf_counter", lambda: now[0])

    class Layer(nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            now[0] += 2.0
            return super().forward(given)

    model = nn.Module()
    model.layers = nn.ModuleDict({"0": Layer(2, 2), "1": Layer(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = Told([(0, 1.0), (0, 1.0)])
    watch = StragglerDetector(1.3, rank_group=told)  # type: ignore[arg-type]
    watch.register_hooks(model, optimizer)
    for step in range(1, 2 * stragglers.WINDOW_STEPS + 1):
        watch.mark_step_start()
        now[0] += 1.0  # rows
        watch.mark_collectives_start()
        now[0] += 100.0  # waiting for others
        for layer in model.layers.values():
            layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        watch.after_step(step)
    assert told.pending_batches == [(0, 5.0)]


def test_nothing_is_measured_where_nobody_asked_or_there_is_one_rank() -> None:
    for watch in (StragglerDetector(None, rank_group=Told([])), StragglerDetector(1.3)):  # type: ignore[arg-type]
        run_steps(watch, 1, 30)
        assert watch.pop_metrics() == {}
