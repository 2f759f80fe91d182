"""Groups between their first token and the step that learns from them: a queue that lets the quick ones overtake, within a window."""

from dataclasses import dataclass, field
from math import floor
from typing import Any

from titanrun.rl.samples import Group, group_of


class TooOld(Exception):
    """A group is older than the window allows, which means that a slot was given away too early."""


@dataclass(slots=True)
class GroupWindow:
    """Groups in the order of their admission.

    A group that is done may be taken if it was admitted less than `window` groups after the oldest that is left; so the oldest is
    overtaken by less than `window` others, and none gets older than (capacity + window - 2) / prompts_per_step steps.

    Args:
        prompts_per_step: groups of one step.
        offpolicy: steps that generation may run ahead.
        share: of the capacity that is looked through.
    """

    prompts_per_step: int
    offpolicy: int
    share: float
    groups: list[Group] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """Groups that may be under way."""
        return (self.offpolicy + 1) * self.prompts_per_step

    @property
    def window(self) -> int:
        """Groups, from the oldest, among which those that are done are found."""
        return max(1, floor(self.share * self.capacity)) if self.offpolicy else self.capacity

    @property
    def oldest_allowed(self) -> int:
        """How many versions a group may be behind when it is taken."""
        return (
            floor((self.capacity + self.window - 2) / self.prompts_per_step)
            if self.offpolicy
            else 0
        )

    @property
    def room(self) -> int:
        """Groups that may be admitted."""
        return self.capacity - len(self.groups)

    def take(self, count: int, *, version: int) -> list[Group]:
        """Up to `count` groups that are done, the oldest first. The window begins at the oldest group that is left.

        Raises TooOld where one of them is older than can be.
        """
        taken: list[Group] = []
        while len(taken) < count:
            end = self.groups[0].number + self.window if self.groups else 0
            ready = next(
                (group for group in self.groups if group.is_done and group.number < end), None
            )
            if ready is None:
                break
            self.groups.remove(ready)
            taken.append(ready)
            if version - ready.born > self.oldest_allowed:
                raise TooOld(
                    f"group {ready.number} is {version - ready.born} versions old, and {self.oldest_allowed} are allowed"
                )
        return taken

    def state(self) -> list[dict[str, Any]]:
        """Plain data for a checkpoint."""
        return [group.as_data() for group in self.groups]

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Takes over what `state` gave."""
        self.groups = [group_of(data) for data in state]
