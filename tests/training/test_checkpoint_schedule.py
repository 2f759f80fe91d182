from titanrun.training.checkpoint_schedule import CheckpointSchedule


class Clock:
    """Goes forward by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_steps_between_saves_are_counted_from_the_start_of_the_run() -> None:
    times = CheckpointSchedule(4)
    assert [step for step in range(1, 13) if times.is_due(step)] == [4, 8, 12]


def test_a_save_is_due_when_the_time_since_the_last_one_is_over() -> None:
    clock = Clock()
    times = CheckpointSchedule("1m30s", clock=clock)
    saved = []
    for step in range(1, 11):
        clock.now += 40
        if times.is_due(step):
            saved.append(step)
            # saving takes its time too, and none of it counts
            clock.now += 1000
            times.restart()
    assert saved == [3, 6, 9]


def test_a_save_for_another_reason_starts_the_time_anew() -> None:
    clock = Clock()
    times = CheckpointSchedule("10m", clock=clock)
    clock.now += 599
    assert not times.is_due(1)
    times.restart()
    clock.now += 599
    assert not times.is_due(2)
    clock.now += 1
    assert times.is_due(3)


def test_the_clock_of_the_first_rank_counts() -> None:
    clock = Clock()
    late = CheckpointSchedule("10m", clock=clock, broadcast=lambda due: True)
    early = CheckpointSchedule("10m", clock=clock, broadcast=lambda due: False)
    assert late.is_due(1)
    clock.now += 10_000
    assert not early.is_due(1)
