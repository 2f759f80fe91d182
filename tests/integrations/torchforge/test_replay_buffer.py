"""Episodes that wait to be learned from."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.integrations.torchforge.replay_buffer import BufferEntries, ReplayBuffer


@dataclass(frozen=True)
class Played:
    number: int
    policy_version: int = 0


def filled(count: int, **options: Any) -> ReplayBuffer:
    """A buffer of as many episodes, of version = their number // 4."""
    buffer = ReplayBuffer(**{"batch_size": 2, "seed": 0, **options})
    for number in range(count):
        buffer.add(Played(number, number // 4))
    return buffer


def drawn(batches: list[list[Played]]) -> list[int]:
    return [episode.number for batch in batches for episode in batch]


def test_each_rank_gets_its_batch_and_no_episode_twice() -> None:
    buffer = filled(12, dp_size=3)
    first, second = buffer.sample(0), buffer.sample(0)
    assert [len(batch) for batch in first] == [2, 2, 2]
    assert len({*drawn(first), *drawn(second)}) == 12
    assert buffer.sample(0) is None and len(buffer) == 0


def test_too_few_episodes_are_none_and_stay() -> None:
    buffer = filled(3, dp_size=2)
    assert buffer.sample(0) is None and len(buffer) == 3


def test_what_is_too_old_is_never_sampled() -> None:
    buffer = filled(16, max_policy_age=1)
    found = [episode for _ in range(3) for batch in buffer.sample(3) for episode in batch]
    assert len(found) == 6 and all(3 - episode.policy_version <= 1 for episode in found)
    buffer.evict(9)
    assert len(buffer) == 0


def test_an_episode_may_be_drawn_again_as_often_as_is_said() -> None:
    buffer = filled(2, max_resample_count=2)
    assert [buffer.sample(0) is None for _ in range(4)] == [False, False, False, True]
    assert all(filled(2, max_resample_count=None).sample(0) is not None for _ in range(9))


def test_the_oldest_make_way() -> None:
    buffer = filled(9, max_buffer_size=4)
    assert sorted(episode.data.number for episode in buffer.buffer) == [5, 6, 7, 8]
    buffer.sample(2)
    for number in range(9, 15):
        buffer.add(Played(number, 3))
    assert len(buffer) == 4


def test_draws_follow_from_the_seed_alone_and_go_on_from_a_state() -> None:
    one, other = filled(40), filled(40)
    random.seed(5)
    first = [drawn(one.sample(0)) for _ in range(3)]
    random.seed(6)
    assert [drawn(other.sample(0)) for _ in range(3)] == first
    assert [drawn(filled(40, seed=1).sample(0)) for _ in range(3)] != first
    resumed = filled(0)
    resumed.load_state_dict(one.state_dict())
    assert drawn(resumed.sample(0)) == drawn(one.sample(0)) and resumed.seed == 0
    assert filled(0, seed=None).seed != filled(0, seed=None).seed


def test_policies_and_collate_are_the_callers() -> None:
    def youngest(entries: BufferEntries, count: int, policy_version: int) -> list[int] | None:
        return list(range(len(entries)))[-count:] if len(entries) >= count else None

    def keep_all(
        entries: BufferEntries, policy_version: int, max_samples: int | None, max_age: int | None
    ) -> list[int]:
        assert (policy_version, max_samples, max_age) == (7, 1, None)
        return list(range(len(entries)))

    buffer = filled(5, sample_policy=youngest, eviction_policy=keep_all, collate=drawn)
    assert buffer.sample(7) == buffer.sample(7) == [3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, but must be at least 1"),
        ({"dp_size": True}, "dp_size is True"),
        ({"max_policy_age": -1}, "max_policy_age is -1, but must be at least 0"),
        (
            {"max_buffer_size": 1},
            r"max_buffer_size is 1, but must be at least 2 \(episodes per "
            r"step\)",
        ),
        ({"max_resample_count": 0.5}, "max_resample_count is 0.5"),
    ],
)
def test_sizes_that_are_none_are_problems(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsFound, match=message):
        filled(0, **options)
