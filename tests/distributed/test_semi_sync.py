"""What torchft's algorithms are asked for; here a module of their name stands in for them."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig

MODULES = ("embedding", "layers.0", "layers.1", "layers.10", "output")
Build = Callable[..., Any]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the algorithms are called with."""
    found: dict[str, Any] = {}
    package = ModuleType("torchft.local_sgd")

    def record(name: str) -> Callable[..., AbstractContextManager[None]]:
        def create(*arguments: Any, **options: Any) -> AbstractContextManager[None]:
            found[name] = SimpleNamespace(arguments=arguments, **options)
            return nullcontext()

        return create

    for name in ("DiLoCo", "LocalSGD"):
        setattr(package, name, record(name))
    monkeypatch.setitem(sys.modules, "torchft", ModuleType("torchft"))
    monkeypatch.setitem(sys.modules, "torchft.local_sgd", package)
    monkeypatch.delitem(sys.modules, "titanrun.distributed.semi_sync", raising=False)
    return found


@pytest.fixture
def build(asked: dict[str, Any]) -> Build:
    from titanrun.distributed.semi_sync import SemiSync

    def build_sync(without: tuple[str, ...] = (), **settings: Any) -> Any:
        parameters = {
            f"{name}.weight": nn.Parameter(torch.ones(2)) for name in MODULES if name not in without
        }
        return SemiSync(
            FaultToleranceConfig(enable=True, **settings),
            SimpleNamespace(),  # type: ignore[arg-type]
            parameters=parameters,
            modules=MODULES,
            outer_momentum={name: torch.zeros(2) for name in parameters},
        )

    return build_sync


def list_fragments(asked: dict[str, Any]) -> list[list[str]]:
    return [
        [name.removesuffix(".weight") for name, _ in fragment.named_parameters()]
        for fragment in asked["DiLoCo"].arguments[1]
    ]


def test_averaging_takes_all_weights_at_once(build: Build, asked: dict[str, Any]) -> None:
    build(semi_sync_method="local_sgd", sync_steps=7)
    _, model, _, sync_every = asked["LocalSGD"].arguments
    assert (len(list(model.parameters())), sync_every) == (len(MODULES), 7)


def test_layers_are_split_evenly_into_fragments(build: Build, asked: dict[str, Any]) -> None:
    build(semi_sync_method="diloco", sync_steps=4, num_fragments=2)
    assert list_fragments(asked) == [["embedding", "layers.0", "layers.1"], ["layers.10", "output"]]


def test_the_outer_optimizer_is_that_of_the_recipe(build: Build, asked: dict[str, Any]) -> None:
    listed = (("output", "layers.1"), ("embedding", "layers.0", "layers.10"))
    build(
        semi_sync_method="diloco",
        sync_steps=6,
        module_fqns_per_model_fragment=listed,
        fragment_sync_delay=2,
        fragment_update_alpha=0.5,
        outer_lr=0.3,
        outer_momentum=0.4,
        outer_nesterov=False,
    )
    call = asked["DiLoCo"]
    # a module is not one whose name only begins alike
    assert list_fragments(asked) == [["layers.1", "output"], ["embedding", "layers.0", "layers.10"]]
    assert (call.sync_every, call.fragment_sync_delay, call.fragment_update_alpha) == (6, 2, 0.5)
    assert len(call.arguments[3]) == 2
    for optimizer in call.arguments[3]:
        group = optimizer.param_groups[0]
        assert (group["lr"], group["momentum"], group["nesterov"]) == (0.3, 0.4, False)


def test_a_fragment_without_weights_of_its_own_is_refused(build: Build) -> None:
    with pytest.raises(ProblemsFound, match="no weights of its own"):
        build(
            without=("output",),
            semi_sync_method="diloco",
            sync_steps=4,
            module_fqns_per_model_fragment=(MODULES[:-1], MODULES[-1:]),
        )
