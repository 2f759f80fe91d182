"""State of an RL run between steps."""

from typing import Any

from titanrun.rl.algorithms.advantages import RunningMeanBaseline, build_advantage_fn
from titanrun.rl.config import RlConfig
from titanrun.rl.rollout_buffer import RolloutBuffer
from titanrun.training.engine import Engine


class RlState:
    """State of an RL run in checkpoints, in addition to weights and data position.

    Args:
        config: section `rl` of the recipe.
        engine: engine whose policy version is saved.
    """

    def __init__(self, config: RlConfig, engine: Engine) -> None:
        schedule = config.schedule
        self.rollout_buffer = RolloutBuffer(
            config.rollout.prompts_per_step, schedule.target_offpolicy, schedule.window
        )
        self.engine = engine
        self.next_group = 0
        self.consecutive_dropped_steps = 0
        self.validation_results: dict[int, dict[str, float]] = {}
        self.advantage_fn = build_advantage_fn(getattr(config.algorithm, "advantage", "group_mean"))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "policy_version": self.engine.policy_version,
            "next_group": self.next_group,
            "dropped_in_a_row": self.consecutive_dropped_steps,
            "running_mean": self.advantage_fn.state_dict()
            if isinstance(self.advantage_fn, RunningMeanBaseline)
            else None,
            "examined": [[step, values] for step, values in self.validation_results.items()],
            "groups": self.rollout_buffer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the data of `state_dict`."""
        self.engine.policy_version = state_dict["policy_version"]
        self.next_group, self.consecutive_dropped_steps = (
            state_dict["next_group"],
            state_dict["dropped_in_a_row"],
        )
        if (
            isinstance(self.advantage_fn, RunningMeanBaseline)
            and state_dict["running_mean"] is not None
        ):
            self.advantage_fn.load_state_dict(state_dict["running_mean"])
        self.rollout_buffer.load_state_dict(state_dict["groups"])
        self.validation_results.update((step, values) for step, values in state_dict["examined"])
