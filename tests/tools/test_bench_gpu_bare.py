"""The bare loop of the GPU benchmark: its batches and its updates, as far as a CPU can tell."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

BENCH = Path(__file__).parents[2] / "tools" / "bench"
sys.path[:0] = [str(BENCH)]

import gpu_bare_update  # noqa: E402
from gpu_bare_batches import iter_rows, iter_staged, look_ahead  # noqa: E402
from gpu_bare_update import (  # noqa: E402
    ADAM_EPS,
    BETAS,
    DECAY,
    LR,
    build_update,
    updates_bf16_states,
)

CPU = torch.device("cpu")


def test_the_bare_loop_knows_nothing_of_titanrun() -> None:
    files = sorted(BENCH.glob("gpu_bare*.py"))
    assert [file.stem for file in files] == ["gpu_bare", "gpu_bare_batches", "gpu_bare_update"]
    for text in (file.read_text() for file in files):
        assert "import titanrun" not in text and "from titanrun" not in text


def test_the_next_batch_is_staged_before_one_is_given() -> None:
    staged = []

    def stage() -> Iterator[int]:
        for number in range(4):
            staged.append(number)
            yield number

    given = look_ahead(stage())
    assert staged == []
    for number, known in ((0, 2), (1, 3), (2, 4), (3, 4)):
        assert next(given) == number
        assert len(staged) == known
    assert list(given) == []


def test_batches_come_in_order_and_again_from_the_beginning() -> None:
    rows = numpy.arange(10, dtype="uint32").reshape(5, 2)
    batches = list(islice(iter_staged(iter_rows(rows, 2), CPU), 3))
    assert [batch.tolist() for batch in batches] == [
        *([[0, 1], [2, 3]], [[4, 5], [6, 7]], [[0, 1], [2, 3]])
    ]
    assert batches[0].dtype == torch.int64


def make_masters(layers: int) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"tok_embeddings.weight": (12, 8), "norm.weight": (8,), "output.weight": (12, 8)}
    for layer in range(layers):
        shapes |= {f"layers.{layer}.w1.weight": (16, 8), f"layers.{layer}.norm.weight": (8,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in shapes.items()
    }


def set_gradients(masters: dict[str, nn.Parameter], step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    for weight in masters.values():
        weight.grad = torch.randn(weight.shape, generator=generator)
    return torch.tensor(2.0)


def test_all_layers_share_one_graph_that_updates_a_list() -> None:
    counter, calls = CompileCounter(), []

    def compile_lists(function: Any, **settings: Any) -> Any:
        assert settings == {"fullgraph": True, "dynamic": False}
        compiled = torch.compile(function, backend=counter, **settings)
        return lambda weights, *rest: calls.append(len(weights)) or compiled(weights, *rest)

    masters = make_masters(layers=5)
    update = build_update(masters, bf16_states=True, device=CPU, compile_lists=compile_lists)
    for step in range(3):
        update(set_gradients(masters, step))
    # of a step: what lies outside of layers, and each layer
    assert calls == 3 * [3, *5 * [2]]
    assert counter.frame_count == 2


def test_updates_with_bf16_states_are_those_of_the_formula() -> None:
    masters = make_masters(layers=2)
    update = build_update(masters, bf16_states=True, device=CPU, compile_lists=None)
    expected = {name: weight.detach().double() for name, weight in masters.items()}
    means, squares = ({name: torch.zeros_like(w) for name, w in expected.items()} for _ in "12")
    for step in range(1, 4):
        norm = set_gradients(masters, step)
        update(norm)
        for name, weight in masters.items():
            assert weight.grad is not None
            # clipped to a norm of 1
            grad = weight.grad.double() / (norm + 1e-6)
            mean = BETAS[0] * means[name] + (1 - BETAS[0]) * grad
            square = BETAS[1] * squares[name] + (1 - BETAS[1]) * grad**2
            root = (square / (1 - BETAS[1] ** step)).sqrt() + ADAM_EPS
            expected[name] *= 1 - LR * DECAY
            expected[name] -= LR / (1 - BETAS[0] ** step) * mean / root
            # states are kept in bf16, updates are computed before they are rounded
            means[name], squares[name] = (s.bfloat16().double() for s in (mean, square))
    for name, weight in masters.items():
        torch.testing.assert_close(weight.detach().double(), expected[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("version", "device", "updates"),
    [
        ("2.11.0+cu130", "cuda", False),
        ("2.12.0", "cuda", True),
        ("2.13.1+cu130", "cuda", True),
        ("3.0.0", "cuda", True),
        ("2.13.0+cpu", "cpu", False),
    ],
)
def test_the_fused_kernel_updates_bf16_states_from_torch_2_12_on_a_gpu(
    version: str, device: str, updates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert updates_bf16_states(torch.device(device)) == updates


def test_the_fused_kernel_gets_states_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Fused(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:
            given.append({w.dtype for s in self.state.values() for w in s.values()})

    monkeypatch.setattr(gpu_bare_update, "updates_bf16_states", lambda _: True)
    monkeypatch.setattr(torch.optim, "AdamW", Fused)
    masters = make_masters(layers=1)
    build_update(masters, bf16_states=True, device=CPU, compile_lists=None)(torch.tensor(2.0))
    assert given == [{torch.float32, torch.bfloat16}]
