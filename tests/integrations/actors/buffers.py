"""Replay buffers whose endpoints go wrong, in a module that imports little."""

import os
import signal
from typing import Any

from titanrun.integrations.torchforge.replay_buffer import ReplayBuffer


class Episode:
    """An episode with an identity of its own."""

    def __init__(self, policy_version: int) -> None:
        self.policy_version = policy_version


class OddBuffer(ReplayBuffer):
    """A buffer whose endpoints go wrong."""

    def sample(self, curr_policy_version: int) -> Any:
        if curr_policy_version == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if curr_policy_version == 8:
            return lambda: None
        raise UnpicklableError(lambda: curr_policy_version)

    def evict(self, curr_policy_version: int) -> None:
        self.add(1 // curr_policy_version)  # type: ignore[arg-type]


class UnpicklableError(Exception):
    """An error that cannot be sent."""
