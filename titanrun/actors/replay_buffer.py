"""The replay buffer of TorchForge by its documented fields and calls: episodes that wait to be learned from."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from titanrun.config.problems import Problem, ProblemsFound


class Episode(Protocol):
    """What is kept: it knows which version of the policy it comes from."""

    @property
    def policy_version(self) -> int: ...


@dataclass(slots=True)
class Entry:
    """An episode, and how often it was sampled."""

    data: Any
    sample_count: int = 0


Entries = Sequence[Entry]


def age_evict(
    buffer: Entries, policy_version: int, max_samples: int | None = None, max_age: int | None = None
) -> list[int]:
    """The indices of those that stay: neither too old, nor sampled as often as they may be."""
    return [
        index
        for index, entry in enumerate(buffer)
        if (max_age is None or policy_version - entry.data.policy_version <= max_age)
        and (max_samples is None or entry.sample_count < max_samples)
    ]


def unchanged(batches: list[list[Any]]) -> Any:
    """The episodes of each data-parallel rank as they are."""
    return batches


@dataclass(eq=False)
class ReplayBuffer:
    """Gives each data-parallel rank `batch_size` episodes drawn without repetition. Raises ProblemsFound for sizes that are none.

    Args:
        max_policy_age: updates that an episode may be behind the policy; None: any.
        max_buffer_size: the oldest make way beyond it; None: never.
        max_resample_count: how often an episode may be drawn again; None: for ever.
        seed: of the draws; None: another one each time.
        collate: makes what `sample` gives of a list of episodes for each data-parallel rank.
        eviction_policy: `(entries, policy_version, max_samples, max_age)` to the indices of those that stay.
        sample_policy: `(entries, count, policy_version)` to the indices that are drawn, or None where there are too few; None draws
            from all alike.
    """

    batch_size: int
    dp_size: int = 1
    max_policy_age: int | None = None
    max_buffer_size: int | None = None
    max_resample_count: int | None = 0
    seed: int | None = None
    collate: Callable[[list[list[Any]]], Any] = unchanged
    eviction_policy: Callable[..., list[int]] = age_evict
    sample_policy: Callable[[Entries, int, int], list[int] | None] | None = None
    buffer: deque[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self._refuse_sizes()
        self.setup()

    def setup(self) -> None:
        """Empties the buffer and begins the draws anew."""
        self.buffer = deque(maxlen=self.max_buffer_size)
        if self.seed is None:
            self.seed = random.SystemRandom().randrange(2**32)
        # its own: no draw elsewhere in the process moves it
        self._random = random.Random(self.seed)

    def _refuse_sizes(self) -> None:
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
            why = " episodes, which one step takes" if name == "max_buffer_size" else ""
            problems.append(
                Problem(
                    "out-of-range",
                    f"{name} is {value!r}, and has to be at least {low}{why}",
                    (name,),
                )
            )
        if problems:
            raise ProblemsFound(problems)

    def add(self, episode: Episode) -> None:
        """Takes an episode in."""
        self.buffer.append(Entry(episode))

    def sample(self, curr_policy_version: int) -> Any:
        """What `collate` makes of the episodes of each data-parallel rank; None while there are too few that are young enough."""
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
        drawn = [self.buffer[index] for index in indices]
        for entry in drawn:
            entry.sample_count += 1
        return self.collate(
            [
                [entry.data for entry in drawn[start : start + self.batch_size]]
                for start in range(0, total, self.batch_size)
            ]
        )

    def evict(self, curr_policy_version: int) -> None:
        """Forgets what is too old or was sampled often enough."""
        most = None if self.max_resample_count is None else self.max_resample_count + 1
        kept = self.eviction_policy(self.buffer, curr_policy_version, most, self.max_policy_age)
        self.buffer = deque((self.buffer[index] for index in kept), maxlen=self.max_buffer_size)

    def clear(self) -> None:
        """Forgets all."""
        self.buffer.clear()

    def __len__(self) -> int:
        return len(self.buffer)

    def state_dict(self) -> dict[str, Any]:
        """The episodes, and where the draws are."""
        return {
            "buffer": [(entry.data, entry.sample_count) for entry in self.buffer],
            "rng_state": self._random.getstate(),
            "seed": self.seed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        self.buffer = deque(
            (Entry(data, count) for data, count in state_dict["buffer"]),
            maxlen=self.max_buffer_size,
        )
        self._random.setstate(state_dict["rng_state"])
        self.seed = state_dict["seed"]
