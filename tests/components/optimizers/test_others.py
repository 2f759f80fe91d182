"""The optimizers beside AdamW, 20 steps each in float64, against torch's or their authors' own."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import schedulefree
import torch
from torch import nn

from titanrun.components.checkpoints.optimizer_state import flatten_optimizer_state
from titanrun.components.optimizers.config import (
    AdamConfig,
    AdamWConfig,
    MuonConfig,
    ParamGroup,
    ScheduleFreeAdamWConfig,
    SgdConfig,
    StandardOptimizerConfig,
)
from titanrun.components.optimizers.muon import orthogonalize

STEPS = 20


class Tiny(nn.Module):
    """A matrix, a tall one, a norm and a bias, named as a decoder's are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok_embeddings = nn.Embedding(11, 6)
        self.layers = nn.ModuleDict({"0": nn.Linear(6, 10)})
        self.norm = nn.RMSNorm(10)
        self.output = nn.Linear(10, 11, bias=False)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(self.layers["0"](self.tok_embeddings(tokens))))


def built(config: StandardOptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = config.load_builder()(
        config, parameters=list(model.named_parameters())
    )
    return optimizer


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    rate: Callable[[int], float] | None = None,
) -> dict[str, torch.Tensor]:
    for step in range(STEPS):
        tokens = torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        for group in optimizer.param_groups if rate is not None else ():
            group["lr"] = rate(step)
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_equal(
    ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], rel: float = 1e-12
) -> None:
    for name, tensor in theirs.items():
        torch.testing.assert_close(
            ours[name], tensor, rtol=rel, atol=rel, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_adam_is_torchs() -> None:
    ours, theirs = Tiny(), Tiny()
    found = train(
        ours,
        built(
            AdamConfig(
                lr=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, implementation="for-loop"
            ),
            ours,
        ),
    )
    torchs = torch.optim.Adam(
        theirs.parameters(), lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1
    )
    assert_equal(found, train(theirs, torchs))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ],
)
def test_sgd_is_torchs(settings: dict[str, Any]) -> None:
    ours, theirs = Tiny(), Tiny()
    found = train(ours, built(SgdConfig(lr=0.1, **settings), ours))
    assert_equal(found, train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1, **settings)))


def test_schedule_free_is_its_authors_trained_and_averaged() -> None:
    ours, theirs = Tiny(), Tiny()
    optimizer = built(
        ScheduleFreeAdamWConfig(lr=0.02, beta1=0.85, beta2=0.95, eps=1e-6, weight_decay=0.1), ours
    )
    original = schedulefree.AdamWScheduleFreeReference(
        theirs.parameters(), lr=0.02, betas=(0.85, 0.95), eps=1e-6, weight_decay=0.1
    )
    original.train()
    # a warmup and a decay, by which the steps weigh differently
    rates = [0.02 * min((step + 1) / 5, (STEPS - step) / 10, 1.0) for step in range(STEPS)]
    assert_equal(
        train(ours, optimizer, rate=rates.__getitem__),
        train(theirs, original, rate=rates.__getitem__),
        rel=1e-9,
    )
    averages = {name: optimizer.averages[parameter] for name, parameter in ours.named_parameters()}  # type: ignore[attr-defined]
    original.eval()
    assert_equal(averages, dict(theirs.named_parameters()), rel=1e-9)


def test_looking_at_the_averages_changes_no_bit_of_the_training() -> None:
    looked, left_alone = Tiny(), Tiny()
    optimizer: Any = built(ScheduleFreeAdamWConfig(lr=0.02), looked)
    before = train(looked, optimizer)
    optimizer.swap_in_averages()
    assert not torch.equal(looked.output.weight, before["output.weight"])
    optimizer.swap_out_averages()
    other = built(ScheduleFreeAdamWConfig(lr=0.02), left_alone)
    train(left_alone, other)
    after, expected = train(looked, optimizer), train(left_alone, other)
    assert all(torch.equal(after[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rule", ["match_rms_adamw", "original"])
def test_muon_steps_matrices_as_torchs_muon_and_the_rest_as_adamw(
    nesterov: bool, rule: Any
) -> None:
    ours, theirs = Tiny().float(), Tiny().float()
    config = MuonConfig(
        lr=0.01,
        weight_decay=0.1,
        momentum=0.9,
        nesterov=nesterov,
        adjust_lr=rule,
        ns_steps=4,
        beta2=0.9,
        eps=1e-6,
    )
    found = train(ours, built(config, ours))
    matrices = [theirs.layers["0"].weight]
    others = [parameter for parameter in theirs.parameters() if parameter is not matrices[0]]
    muon = torch.optim.Muon(
        matrices,
        lr=0.01,
        weight_decay=0.1,
        momentum=0.9,
        nesterov=nesterov,
        adjust_lr_fn=rule,
        ns_steps=4,
    )
    adamw = torch.optim.AdamW(others, lr=0.01, weight_decay=0.1, betas=(0.9, 0.9), eps=1e-6)

    class Both:
        param_groups: ClassVar[list[Any]] = []

        def step(self) -> None:
            muon.step()
            adamw.step()

        def zero_grad(self) -> None:
            theirs.zero_grad()

    # the products are in bfloat16 in both
    assert_equal(found, train(theirs, Both()), rel=2e-3)  # type: ignore[arg-type]


def test_orthogonalising_keeps_the_singular_vectors_and_evens_out_the_values() -> None:
    matrix = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    result = orthogonalize(matrix, steps=10, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    evened = left.mT @ result @ right.mT
    diagonal = evened.diagonal(dim1=-2, dim2=-1)
    assert (evened - torch.diag_embed(diagonal)).abs().max() < 1e-9
    assert (diagonal - 1).abs().max() < 0.4 < (values / values[..., :1] - 1).abs().max()
    torch.testing.assert_close(orthogonalize(matrix.mT, steps=10, dtype=torch.float64), result.mT)
    torch.testing.assert_close(orthogonalize(matrix[1], steps=10, dtype=torch.float64), result[1])


def test_states_in_bf16_take_half_the_memory_and_follow_adamw() -> None:
    ours, theirs = Tiny().float(), Tiny().float()
    optimizer = built(AdamWConfig(lr=0.01, state_dtype="bfloat16"), ours)
    whole = built(AdamWConfig(lr=0.01), theirs)
    found, expected = train(ours, optimizer), train(theirs, whole)
    # the mean of eight bits of fraction is off by up to 2^-9, and so is the root of the other
    assert_equal(found, expected, rel=2e-2)
    assert any(not torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert 2 * state_bytes(ours, optimizer) == state_bytes(theirs, whole)


KEPT: list[tuple[StandardOptimizerConfig, int]] = [
    (AdamConfig(), 8),
    (AdamWConfig(), 8),
    (AdamWConfig(state_dtype="bfloat16"), 4),
    (MuonConfig(), 4),
    (SgdConfig(), 0),
    (SgdConfig(momentum=0.9), 4),
    (ScheduleFreeAdamWConfig(), 12),
]


@pytest.mark.parametrize(("config", "bytes_in_layer"), KEPT)
def test_a_weight_of_a_layer_has_the_state_that_plans_count(
    config: StandardOptimizerConfig, bytes_in_layer: int
) -> None:
    model = Tiny().float()
    optimizer = built(config, model)
    train(model, optimizer)
    weight = model.layers["0"].weight
    kept = {**optimizer.state[weight], "average": getattr(optimizer, "averages", {}).get(weight)}
    found = sum(
        tensor.nbytes
        for tensor in kept.values()
        if tensor is not None and tensor.shape == weight.shape
    )
    assert (
        found / weight.numel() == bytes_in_layer == config.compute_state_bytes(4, is_in_layer=True)
    )


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    return sum(
        tensor.nbytes
        for name, tensor in flatten_optimizer_state(model, optimizer).items()
        if not name.endswith(".step")
    )


def test_each_parameter_has_the_settings_of_its_group() -> None:
    model = Tiny()
    groups = (
        ParamGroup(match=("output.*",), lr=0.5),
        ParamGroup(match=("layers.*.weight", "norm.*"), weight_decay=0.7),
    )
    optimizer = built(
        AdamWConfig(
            lr=0.1,
            weight_decay=0.2,
            no_decay=("biases", "norms", "embeddings"),
            param_groups=groups,
        ),
        model,
    )
    found = {
        name: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for name in group["param_names"]
    }
    assert found == {
        "tok_embeddings.weight": (0.1, 0.0),
        "layers.0.bias": (0.1, 0.0),
        "output.weight": (0.5, 0.2),
        "layers.0.weight": (0.1, 0.7),
        "norm.weight": (0.1, 0.7),
    }


def test_claims_that_overlap_or_find_nothing_are_problems() -> None:
    groups = (ParamGroup(match=("layers.*",)), ParamGroup(match=("*.bias", "head.*")))
    problems = AdamWConfig(param_groups=groups).find_param_group_problems(
        [name for name, _ in Tiny().named_parameters()]
    )
    assert [(problem.code, problem.path[2]) for problem in problems] == [
        ("no-effect", 1),
        ("conflict", 1),
    ]
    assert problems[0].message == "no parameter is called 'head.*'"
    assert problems[1].message == "'layers.0.bias' belongs to param_groups[0] already"
