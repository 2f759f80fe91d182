"""Estimators of KL(policy || reference) from tokens sampled by the policy.

See http://joschu.net/blog/kl-approx.html.
"""

from collections.abc import Callable

from torch import Tensor


def estimate_kl_k1(difference: Tensor) -> Tensor:
    """Return d = log p(policy) - log p(reference): unbiased, negative half of the time."""
    return difference


def estimate_kl_k2(difference: Tensor) -> Tensor:
    """Return d^2 / 2: biased, low variance."""
    return difference.square() / 2


def estimate_kl_k3(difference: Tensor) -> Tensor:
    """Return exp(-d) - 1 + d: unbiased and never negative."""
    return (-difference).expm1() + difference


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": estimate_kl_k1,
    "k2": estimate_kl_k2,
    "k3": estimate_kl_k3,
    "abs": Tensor.abs,
}
