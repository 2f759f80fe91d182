"""Attempt of replica groups at a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """Attempt at a step: the number of steps before it, and the groups that take part.

    Args:
        step: number of steps that are done.
        group_index: index of this group among those that take part.
        num_groups: number of groups that take part.
        has_healed: whether this group has just received the state of another one.
    """

    step: int
    group_index: int
    num_groups: int
    has_healed: bool
