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
        members: id of each start of a group that takes part, ending in `_GROUP:ID`.
    """

    step: int
    group_index: int
    num_groups: int
    has_healed: bool
    members: tuple[str, ...] = ()

    def list_members_lost_since(self, before: "StepAttempt") -> list[str]:
        """Return the members of `before` that do not take part any more.

        A group that has come back already has another id.
        """
        return [member for member in before.members if member not in self.members]
