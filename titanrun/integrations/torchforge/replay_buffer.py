"""TorchForge's replay buffer of episodes with its documented fields and calls."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from titanrun.config.problems import Problem, ProblemsFound


class Episode(Protocol):
    """Stored item with the version of the policy that generated it."""

    @property
    def policy_version(self) -> int:
        """Version of the policy that generated the episode."""


@dataclass(slots=True)
class BufferEntry:
    """Episode, and how often it was sampled."""

    data: Any
    sample_count: int = 0


BufferEntries = Sequence[BufferEntry]


def age_evict(
    buffer: BufferEntries,
    policy_version: int,
    max_samples: int | None = None,
    max_age: int | None = None,
) -> list[int]:
    """Return the indices of entries that stay: neither too old, nor sampled too often."""
    return [
        index
        for index, entry in enumerate(buffer)
        if (max_age is None or policy_version - entry.data.policy_version <= max_age)
        and (max_samples is None or entry.sample_count < max_samples)
    ]


def keep_batches_as_lists(batches: list[list[Any]]) -> Any:
    """Return the episodes of each data-parallel rank unchanged."""
    return batches


@dataclass(eq=False)
class ReplayBuffer:
    """Buffer that samples `batch_size` episodes per data-parallel rank without repetition.

    Args:
        batch_size: episodes per data-parallel rank.
        dp_size: number of data-parallel ranks.
        max_policy_age: updates that an episode may be behind the policy. None: no limit.
        max_buffer_size: size beyond which the oldest episodes are dropped. None: no limit.
        max_resample_count: how often an episode may be sampled again. None: no limit.
        seed: seed of the sampling. None: a random seed.
        collate: converts lists of episodes per data-parallel rank to the result of `sample`.
        eviction_policy: maps `(entries, policy_version, max_samples, max_age)` to the indices that
            stay.
        sample_policy: maps `(entries, count, policy_version)` to the sampled indices, or to None if
            there are too few. None: sample uniformly.

    Raises:
        ProblemsFound: a size is invalid.
    """

    batch_size: int
    dp_size: int = 1
    max_policy_age: int | None = None
    max_buffer_size: int | None = None
    max_resample_count: int | None = 0
    seed: int | None = None
    collate: Callable[[list[list[Any]]], Any] = keep_batches_as_lists
    eviction_policy: Callable[..., list[int]] = age_evict
    sample_policy: Callable[[BufferEntries, int, int], list[int] | None] | None = None
    buffer: deque[BufferEntry] = field(init=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self.setup()

    def setup(self) -> None:
        """Empty the buffer and reset the random state."""
        self.buffer = deque(maxlen=self.max_buffer_size)
        if self.seed is None:
            self.seed = random.SystemRandom().randrange(2**32)
        # a separate generator, independent of other random numbers in the process
        self._random = random.Random(self.seed)

    def _check_sizes(self) -> None:
        least = {
            "batch_size": 1,
            "dp_size": 1,
            "max_policy_age": 0,
            "max_buffer_size": self.batch_size * self.dp_size,
            "max_resample_count": 0,
        }
        problems = []
        for name, low in least.items():
            value = getattr(self, name)
            may_be_none = name.startswith("max_")
            if (value is None and may_be_none) or (
                isinstance(value, int) and not isinstance(value, bool) and value >= low
            ):
                continue
            why = " (episodes per step)" if name == "max_buffer_size" else ""
            problems.append(
                Problem(
                    "out-of-range",
                    f"{name} is {value!r}, but must be at least {low}{why}",
                    (name,),
                )
            )
        if problems:
            raise ProblemsFound(problems)

    def add(self, episode: Episode) -> None:
        """Add an episode."""
        self.buffer.append(BufferEntry(episode))

    def sample(self, curr_policy_version: int) -> Any:
        """Return the collated episodes of all data-parallel ranks.

        Return None if there are too few episodes that are recent enough.
        """
        self.evict(curr_policy_version)
        total = self.batch_size * self.dp_size
        if self.sample_policy is None:
            indices = (
                None
                if total > len(self.buffer)
                else self._random.sample(range(len(self.buffer)), k=total)
            )
        else:
            indices = self.sample_policy(self.buffer, total, curr_policy_version)
        if indices is None:
            return None
        sampled = [self.buffer[index] for index in indices]
        for entry in sampled:
            entry.sample_count += 1
        return self.collate(
            [
                [entry.data for entry in sampled[start : start + self.batch_size]]
                for start in range(0, total, self.batch_size)
            ]
        )

    def evict(self, curr_policy_version: int) -> None:
        """Drop episodes that are too old or were sampled often enough."""
        most = None if self.max_resample_count is None else self.max_resample_count + 1
        kept = self.eviction_policy(self.buffer, curr_policy_version, most, self.max_policy_age)
        self.buffer = deque((self.buffer[index] for index in kept), maxlen=self.max_buffer_size)

    def clear(self) -> None:
        """Drop all episodes."""
        self.buffer.clear()

    def __len__(self) -> int:
        return len(self.buffer)

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes and the random state."""
        return {
            "buffer": [(entry.data, entry.sample_count) for entry in self.buffer],
            "rng_state": self._random.getstate(),
            "seed": self.seed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.buffer = deque(
            (BufferEntry(data, count) for data, count in state_dict["buffer"]),
            maxlen=self.max_buffer_size,
        )
        self._random.setstate(state_dict["rng_state"])
        self.seed = state_dict["seed"]
