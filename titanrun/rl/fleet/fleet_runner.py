"""Runner of conversations in the processes of a fleet."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.fleet.step_clock import StepClock
from titanrun.rl.rollout_types import (
    Prompt,
    Rollout,
    RolloutGroup,
    rollout_group_from_dict,
)
from titanrun.rl.weight_sync.transport import Weights, WeightTransport, cast_for_generator
from titanrun.rl.weight_sync.weight_sync import VERSIONS_PER_ROLLBACK, choose_transport_key
from titanrun.training.engine import Engine


class StaleRolloutError(Exception):
    """A completion is older than its group: it was started before its weights were loaded."""


@dataclass(slots=True)
class FleetRunner:
    """Runner with the methods of `RolloutRunner`, whose work is done in other processes.

    Collective: all ranks must call its methods and hold all conversations. The first rank talks to
    the fleet and hands out the results.

    Args:
        fleet: the processes, None on all ranks but the first.
        samples_per_prompt: conversations per group.
        ranks: ranks that hold the conversations.
        clock: what the time of this rank goes to.
    """

    fleet: RolloutFleet | None
    samples_per_prompt: int
    ranks: RankGroup
    clock: StepClock = field(default_factory=StepClock)
    _submitted: set[int] = field(default_factory=set)

    def start_group(
        self,
        prompt: Prompt,
        *,
        group_number: int,
        policy_version: int,
        num_samples: int | None = None,
    ) -> RolloutGroup:
        """Create a group without any turns."""
        count = self.samples_per_prompt if num_samples is None else num_samples
        return RolloutGroup(
            group_number,
            policy_version,
            [Rollout(group_number, index, prompt) for index in range(count)],
        )

    def generate_turn(
        self, groups: Sequence[RolloutGroup], *, temperature: float | None = None
    ) -> None:
        """Submit the groups that are new, and wait until at least one of all groups is done.

        Raises:
            ProblemsFound: no process of the fleet is left, or one reports a problem.
            StaleRolloutError: a completion is older than its group.
        """
        by_number = {group.number: group for group in groups}
        finished = self.ranks.broadcast_from_main(lambda: self._exchange(groups, temperature))
        for data in finished:
            found, group = rollout_group_from_dict(data), by_number[data["number"]]
            group.rollouts = found.rollouts
            self._submitted.discard(group.number)
            oldest = min((each.oldest_version for each in found.rollouts if each.turns), default=0)
            if any(each.turns for each in found.rollouts) and oldest < group.policy_version:
                raise StaleRolloutError(
                    f"a completion of group {group.number} is of version {oldest}, "
                    f"but the group was admitted at version {group.policy_version}"
                )

    def collect_metrics(self, *, num_tokens: int) -> dict[str, float]:
        """Return the metrics of the fleet since the last call, on the first rank.

        Args:
            num_tokens: tokens that were trained on since then.
        """
        return {} if self.fleet is None else self.fleet.collect_usage(num_tokens=num_tokens)

    def forget_groups(self) -> None:
        """Drop all groups that were submitted."""
        self._submitted.clear()
        if self.fleet is not None:
            self.fleet.drop_all()

    def close(self) -> None:
        """End the processes."""
        if self.fleet is not None:
            self.fleet.close()

    def _exchange(
        self, groups: Sequence[RolloutGroup], temperature: float | None
    ) -> list[dict[str, Any]]:
        assert self.fleet is not None, "the first rank has it"
        new = [group for group in groups if group.number not in self._submitted]
        self._submitted.update(group.number for group in new)
        if new:
            self.fleet.submit([group.to_dict() for group in new], temperature=temperature)
        # waiting for validation is no idleness of training
        with self.clock.within("validation" if self.clock.phase == "validation" else "idle"):
            return self.fleet.wait_for_any([group.number for group in groups])


@dataclass(slots=True)
class FleetWeightSync:
    """Transfer of the engine's weights to the processes of a fleet.

    They load them while training goes on.

    Args:
        transport: the connection to the processes.
        runner: the fleet's runner.
        dtype: compute dtype of the generators, also used for the transfer.
        parameter_names: names of the tensors to cast to it.
        version: version that was sent last.
    """

    transport: WeightTransport
    runner: FleetRunner
    dtype: torch.dtype
    parameter_names: frozenset[str]
    version: int = -1
    num_rollbacks: int = 0

    def sync_weights(self, engine: Engine) -> None:
        """Publish the engine's version. Collective: all ranks must call this."""
        if self.version != engine.policy_version:
            self._publish(engine)

    def sync_after_rollback(self, engine: Engine) -> None:
        """Drop all groups and publish an earlier version. Collective."""
        self.runner.forget_groups()
        self.num_rollbacks += 1
        self._publish(engine)

    @torch.no_grad()
    def _publish(self, engine: Engine) -> None:
        with self.runner.clock.within("push"):
            self.version = engine.policy_version
            key = choose_transport_key(self.transport, self.version, self.num_rollbacks)
            self.num_rollbacks = key // VERSIONS_PER_ROLLBACK
            weights = cast_for_generator(
                engine.state_dict_stream(), dtype=self.dtype, parameter_names=self.parameter_names
            )
            self.transport.publish(key, self._time_gathering(weights))
            if self.runner.fleet is not None:
                self.runner.fleet.load(key, version=self.version)

    def _time_gathering(self, weights: Weights) -> Iterator[tuple[str, Tensor]]:
        """Yield weights, and count the time until the transport has copied all of them."""
        start = time.monotonic()
        yield from weights
        if self.runner.fleet is not None:
            self.runner.fleet.record_gathering(time.monotonic() - start)
