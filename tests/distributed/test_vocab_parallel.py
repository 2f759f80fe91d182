"""Statistics of a vocabulary in two parts have the gradients of the whole one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.distributed.gloo_ranks import call_on_ranks
from titanrun.components.losses.distillation import compute_divergence
from titanrun.distributed.dtensor import full_tensor
from titanrun.distributed.vocab_parallel import (
    compute_label_logprobs,
    compute_token_entropy,
    compute_token_logsumexp,
    compute_token_mean_logit,
    find_top_tokens,
)

SHAPE = (2, 5, 33)
STATISTICS = {
    "entropy": compute_token_entropy,
    "entropy in chunks": lambda logits: compute_token_entropy(
        logits, chunk_tokens=2, should_recompute=True
    ),
    "logprobs": lambda logits: compute_label_logprobs(
        logits, torch.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE[:2]) * 3
    ),
    "logsumexp": compute_token_logsumexp,
    "mean logit": compute_token_mean_logit,
    **{
        f"divergence {beta}": lambda logits, beta=beta: compute_divergence(
            logits, split(draw(1), logits), beta=beta, temperature=1.5
        )
        for beta in (0.0, 0.3, 1.0)
    },
}


def draw(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(SHAPE, generator=generator, dtype=torch.float64)


def split(whole: Tensor, other: Tensor) -> Tensor:
    """Split the logits as others are."""
    if not hasattr(other, "device_mesh"):
        return whole
    return distribute_tensor(whole, other.device_mesh, [Shard(-1)])


def compute(logits: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Values and gradients of each statistic."""
    found = {}
    for name, statistic in STATISTICS.items():
        given = logits.detach().clone().requires_grad_()
        values = statistic(given)
        (values * torch.linspace(-1, 2, values.numel()).reshape(values.shape)).sum().backward()
        assert given.grad is not None
        found[name] = (values.detach(), full_tensor(given.grad))
    return found


def compute_on_rank() -> dict[str, tuple[Tensor, Tensor]]:
    mesh = init_device_mesh("cpu", (2,))
    return compute(distribute_tensor(draw(0), mesh, [Shard(-1)]))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[Tensor, Tensor]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    return call_on_ranks(2, compute_on_rank, folder)


@pytest.mark.parametrize("name", STATISTICS)
def test_parts_have_the_values_and_gradients_of_the_whole(
    name: str, ranks: list[dict[str, tuple[Tensor, Tensor]]]
) -> None:
    for seen in ranks:
        for found, expected in zip(seen[name], compute(draw(0))[name], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


# the last of three ranks has no rows of a vocabulary of four
NUM_PARTS, SMALL_VOCABULARY = 3, 4


def draw_with_ties() -> Tensor:
    """Logits of which several are equally high, in bf16."""
    return torch.randint(
        3, (40, 5, SMALL_VOCABULARY), generator=torch.Generator().manual_seed(0)
    ).to(torch.bfloat16)


def find_in_parts() -> Tensor:
    mesh = init_device_mesh("cpu", (NUM_PARTS,))
    return find_top_tokens(distribute_tensor(draw_with_ties(), mesh, [Shard(-1)]))


def test_the_likeliest_token_of_parts_is_the_first_one_of_the_whole(tmp_path: Path) -> None:
    whole = draw_with_ties()
    expected = (whole == whole.amax(-1, keepdim=True)).int().argmax(-1)
    assert len(expected.unique()) == SMALL_VOCABULARY
    assert torch.equal(find_top_tokens(whole), expected)
    for found in call_on_ranks(NUM_PARTS, find_in_parts, tmp_path):
        assert torch.equal(found, expected)
