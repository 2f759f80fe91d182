"""AdamW with states of 8 bits: torchao's numbers, near torch's AdamW, in a quarter of its
memory."""

from typing import Any

import pytest
import torch
from torch import nn

from titanrun.components.checkpoints.optimizer_state import (
    flatten_optimizer_state,
    load_optimizer_state,
)
from titanrun.components.optimizers.adamw_8bit import compute_block_size, compute_map_values
from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWFp8Config, LowBitConfig
from titanrun.distributed.torchao_import import import_torchao

SETTINGS: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.9}
CONFIGS: dict[str, tuple[type[LowBitConfig], str]] = {
    "8bit": (AdamW8bitConfig, "AdamW8bit"),
    "fp8": (AdamWFp8Config, "AdamWFp8"),
}
STEPS = 20


class Pair(nn.Module):
    """A matrix of whole blocks, and one with rows that are too short for them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.wide = nn.Parameter(torch.randn(6, 2048, generator=generator).to(dtype))
        self.short = nn.Parameter(torch.randn(5, 7, generator=generator).to(dtype))
        self.norm = nn.Parameter(torch.ones(7, dtype=dtype))


def built(config: LowBitConfig, model: nn.Module) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = config.load_builder()(
        config, parameters=list(model.named_parameters())
    )
    return optimizer


def slopes(model: nn.Module, step: int) -> None:
    """Gradients of a few magnitudes with a part that lasts and a part that is noise."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        lasting = torch.linspace(-3, 3, parameter.numel()).view(parameter.shape)
        parameter.grad = ((noise + lasting) * torch.logspace(-3, 0, parameter.size(-1))).to(
            parameter.dtype
        )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> None:
    for step in steps:
        slopes(model, step)
        optimizer.step()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_scales_and_weights_are_torchaos(name: str, dtype: torch.dtype) -> None:
    kind, theirs_name = CONFIGS[name]
    ours, theirs = Pair(dtype), Pair(dtype)
    train(ours, optimizer := built(kind(**SETTINGS), ours))
    adam = import_torchao("optim.adam")
    original = getattr(adam, theirs_name)(
        theirs.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9)
    )
    with pytest.MonkeyPatch.context() as patch:
        # as it is written, without a compiler
        patch.setattr(torch, "compile", lambda function, **_: function)
        train(theirs, original)
    # one more or less rounding to bf16
    torch.testing.assert_close(
        ours.wide, theirs.wide, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-6
    )
    state, expected = optimizer.state[ours.wide], original.state[theirs.wide]
    for mean in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(
            state[f"{mean}_scales"].flatten(), expected[mean].scale, rtol=1e-5, atol=0
        )
        # a number that lies between two codes may be rounded either way
        assert (
            state[f"{mean}_codes"] != expected[mean].codes.view(torch.uint8)
        ).float().mean() < 1e-3


@pytest.mark.parametrize("signed", [True, False])
def test_the_map_has_the_values_of_the_paper_as_torchao_lists_them(signed: bool) -> None:
    theirs = torch.tensor(
        import_torchao("optim.quant_utils").create_dynamic_map(signed), dtype=torch.float64
    )
    ours = torch.tensor(sorted(compute_map_values(signed)), dtype=torch.float64)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("name", "far"), [("8bit", 0.01), ("fp8", 0.03)])
def test_twenty_steps_end_near_those_of_adamw(name: str, far: float) -> None:
    ours, theirs, start = Pair(), Pair(), Pair()
    train(ours, built(CONFIGS[name][0](**SETTINGS), ours))
    train(
        theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9))
    )
    walked = (theirs.wide - start.wide).norm()
    assert 0 < (ours.wide - theirs.wide).norm() < far * walked
    torch.testing.assert_close(ours.short, theirs.short, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cut", [0, 3])
def test_training_goes_on_bitwise_after_a_restore(name: str, cut: int) -> None:
    config = CONFIGS[name][0](**SETTINGS)
    uncut = Pair()
    train(uncut, built(config, uncut), range(6))
    model = Pair()
    optimizer = built(config, model)
    train(model, optimizer, range(cut))
    saved = {
        key: tensor.clone() for key, tensor in flatten_optimizer_state(model, optimizer).items()
    }
    resumed = Pair()
    resumed.load_state_dict(model.state_dict())
    load_optimizer_state(resumed, resumed_optimizer := built(config, resumed), saved)
    train(resumed, resumed_optimizer, range(cut, 6))
    assert all(
        torch.equal(mine, other)
        for mine, other in zip(resumed.parameters(), uncut.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("block_size", [64, 256])
def test_states_take_the_bytes_that_plans_count(name: str, block_size: Any) -> None:
    model = Pair()
    config = CONFIGS[name][0](block_size=block_size)
    train(model, optimizer := built(config, model), range(1))
    held = sum(
        tensor.nbytes for key, tensor in optimizer.state[model.wide].items() if key != "step"
    )
    assert held == model.wide.numel() * config.compute_state_bytes(4, is_in_layer=True)
    assert held < 0.27 * 2 * model.wide.nbytes


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((3, 4096), 256),
        ((3, 256), 32),
        ((2, 5, 64), 8),
        ((3, 11008), 32),
        ((3, 40), None),
        ((3, 2049), None),
        ((4096,), None),
    ],
)
def test_blocks_lie_within_an_eighth_of_a_row_whoever_holds_it(
    shape: tuple[int, ...], block: int | None
) -> None:
    assert compute_block_size(torch.Size(shape), 256) == block


GROUP: dict[str, Any] = {"match": ["wide"], "lr": 0.1, "weight_decay": 0.5}
OTHERS: dict[str, dict[str, Any]] = {
    "lr": {"lr": 0.1},
    "weight_decay": {"weight_decay": 0.5},
    "beta1": {"beta1": 0.1},
    "beta2": {"beta2": 0.1},
    "eps": {"eps": 0.1},
    "block_size": {"block_size": 64},
    "no_decay": {"no_decay": ["norms"]},
    "param_groups.match": {"param_groups": [{**GROUP, "match": ["short"]}]},
    "param_groups.lr": {"param_groups": [{**GROUP, "lr": 0.2}]},
    "param_groups.weight_decay": {"param_groups": [{**GROUP, "weight_decay": 0.7}]},
}


class Normed(Pair):
    """With a norm that is named as a decoder's are."""

    def __init__(self) -> None:
        super().__init__()
        del self.norm
        self.norm = nn.RMSNorm(64)


@pytest.mark.parametrize("field", OTHERS)
def test_another_value_gives_other_weights(field: str) -> None:
    base = {**SETTINGS, **({"param_groups": [GROUP]} if "." in field else {})}
    for kind, _ in CONFIGS.values():
        found = []
        for settings in (base, {**base, **OTHERS[field]}):
            model = Normed()
            # through the names of a recipe, as they are validated there
            train(model, built(kind.model_validate(settings), model), range(3))
            found.append(
                torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            )
        assert not torch.equal(*found)
