"""FIFO buffer of rollout groups with bounded out-of-order completion."""

from dataclasses import dataclass, field
from math import floor
from typing import Any

from titanrun.rl.rollout_types import RolloutGroup, rollout_group_from_dict


@dataclass(slots=True)
class RolloutBuffer:
    """Groups in the order of their admission.

    A finished group may be taken if it was admitted less than `window` groups after the oldest
    remaining group. So the oldest is overtaken by less than `window` others, and no group gets
    older than (capacity + window - 2) / prompts_per_step steps.

    Args:
        prompts_per_step: groups per step.
        target_offpolicy: steps that generation may run ahead.
        window_fraction: window size as a fraction of the capacity.
    """

    prompts_per_step: int
    target_offpolicy: int
    window_fraction: float
    groups: list[RolloutGroup] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """Largest number of groups in progress."""
        return (self.target_offpolicy + 1) * self.prompts_per_step

    @property
    def window(self) -> int:
        """Number of groups, from the oldest, among which finished ones may be taken."""
        return (
            max(1, floor(self.window_fraction * self.capacity))
            if self.target_offpolicy
            else self.capacity
        )

    @property
    def max_version_lag(self) -> int:
        """Largest number of versions that a group may be behind when it is taken."""
        return (
            floor((self.capacity + self.window - 2) / self.prompts_per_step)
            if self.target_offpolicy
            else 0
        )

    @property
    def free_slots(self) -> int:
        """Number of groups that may be admitted."""
        return self.capacity - len(self.groups)

    def pop_finished(self, count: int) -> list[RolloutGroup]:
        """Remove and return up to `count` finished groups, the oldest first.

        The window starts at the oldest remaining group.
        """
        taken: list[RolloutGroup] = []
        while len(taken) < count:
            end = self.groups[0].number + self.window if self.groups else 0
            ready = next(
                (group for group in self.groups if group.is_done and group.number < end), None
            )
            if ready is None:
                break
            self.groups.remove(ready)
            taken.append(ready)
        return taken

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the groups as plain data for a checkpoint."""
        return [group.to_dict() for group in self.groups]

    def load_state_dict(self, state_dict: list[dict[str, Any]]) -> None:
        """Restore the groups that `state_dict` returned."""
        self.groups = [rollout_group_from_dict(data) for data in state_dict]
