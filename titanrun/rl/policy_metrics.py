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


@dataclass(frozen=True, slots=True)
class OptimStep(Mapping[str, float]):
    """Result of an update: a mapping of its values, and an object as torchtitan's.

    Args:
        policy_version: number of updates made, this one included.
        numbers: `grad_norm`, `lr`, `is_skipped` and `policy_version`.
    """

    policy_version: int
    numbers: dict[str, float]

    @property
    def metrics(self) -> dict[str, Any]:
        """The values under torchtitan's names."""
        return {
            "trainer/grad_norm/mean": self.numbers["grad_norm"],
            "trainer/lr": self.numbers["lr"],
            "trainer/policy_version": self.policy_version,
        }

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)
