"""Estimates of KL(policy || reference) from a token that the policy drew (http://joschu.net/blog/kl-approx.html)."""

from collections.abc import Callable

from torch import Tensor


def k1(difference: Tensor) -> Tensor:
    """log p(policy) - log p(reference): unbiased, negative half of the time."""
    return difference


def k2(difference: Tensor) -> Tensor:
    """Half the square: biased, low variance."""
    return difference.square() / 2


def k3(difference: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased and never negative."""
    return (-difference).expm1() + difference


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": Tensor.abs,
}
