"""Metrics of a policy update under the names of torchtitan's RL trainers, beside our own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# ours -> names of torchtitan's first PolicyTrainer, and of its current one
FURTHER_NAMES = {
    "loss": ("loss/mean",),
    "rl/pg_loss": ("pg_loss",),
    "rl/advantage_mean": ("advantage_mean",),
    "rl/advantage_std": ("advantage_std",),
    "rl/logprob_diff_mean": ("logprob_diff_mean", "bit_wise/logprob_diff/mean"),
    "rl/logprob_diff_max": ("logprob_diff_max", "bit_wise/logprob_diff/max"),
    "rl/tokens_different": ("bit_wise/ratio_tokens_different/mean",),
    "rl/ratio_mean": ("ratio_mean", "loss/ratio_mean"),
    "rl/clipped_share": ("ratio_clipped_frac", "loss/ratio_clipped_frac"),
    "rl/entropy": ("trainer/entropy/mean",),
}
LEARNING_RATE = "trainer/lr"
HIGHEST, LOWEST = "rl/logprob_delta_high", "rl/logprob_delta_low"


def build_policy_metrics(loss: float, averaged: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a forward and backward pass under all their names.

    Args:
        loss: mean loss of the tokens of all ranks.
        averaged: what the loss recorded, over all tokens and ranks.
    """
    values = {"loss": loss, **averaged}
    for name, further in FURTHER_NAMES.items():
        if name in values:
            values |= dict.fromkeys(further, values[name])
    if HIGHEST in averaged:
        high, low = averaged[HIGHEST], -averaged[LOWEST]
        values["logprob_max_delta"] = high if high >= -low else low
        values["logprob_bitwise_identical"] = float(high == 0 and low == 0)
    return values


class UpdateMetrics(dict[str, Any]):
    """Values under torchtitan's names, which has one learning rate for all weights."""

    def __missing__(self, name: str) -> Any:
        if name == LEARNING_RATE:
            raise KeyError(f"{name}: the optimizer has several learning rates")
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class OptimStep(Mapping[str, float]):
    """Result of an update: a mapping of its values, and an object as torchtitan's.

    Args:
        policy_version: number of updates made, this one included.
        numbers: `grad_norm`, `lr` (of the first parameter group), `is_skipped` and
            `policy_version`.
        learning_rates: the different learning rates of the update.
    """

    policy_version: int
    numbers: dict[str, float]
    learning_rates: tuple[float, ...]

    @property
    def metrics(self) -> dict[str, Any]:
        """The values under torchtitan's names, the learning rate if there is only one."""
        values = UpdateMetrics({"trainer/grad_norm/mean": self.numbers["grad_norm"]})
        if len(self.learning_rates) == 1:
            values[LEARNING_RATE] = self.learning_rates[0]
        values["trainer/policy_version"] = self.policy_version
        return values

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)
