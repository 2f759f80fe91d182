"""Every place that asks whether a device is an accelerator is executed for one, without a GPU.

The meta device stands for the accelerator, and `FakeAccelerator` for torch's module of its device.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.meta_engine import META, build_meta_engine, draw_batch, resolve_text, train_step
from tests.training.meta_kernels import use_meta_kernels
from titanrun.components.checkpoints import async_save
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.token_collator import TokenCollator
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.config.problems import ProblemsFound
from titanrun.distributed import (
    determinism,
    device,
    dual_pipe_overlap,
    flight_recorder,
    freed_memory,
    grad_norm,
    head_products,
    process_group,
)
from titanrun.distributed.config import CommConfig
from titanrun.distributed.device_timer import DeviceTimer
from titanrun.distributed.host_copies import HostCopies
from titanrun.distributed.precision import get_precision
from titanrun.distributed.rank_env import RankInfo
from titanrun.models.shared import attention, sdpa_attention
from titanrun.models.shared.attention_masks import CausalMask
from titanrun.recipe.recipe import Recipe
from titanrun.training import synced_signals
from titanrun.training.nonfinite import NonFiniteGuard
from titanrun.worker import hardware_info
from titanrun.worker.build import build_data, build_model

ROOT = Path(__file__).parents[2] / "titanrun"
# PyTorch's compiler warns of itself
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


def find_places() -> set[str]:
    """Functions that call `is_accelerator`, as module:qualified name."""
    found: set[str] = set()

    def visit(node: ast.AST, module: str, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") == "is_accelerator":
                found.add(f"{module}:{'.'.join(names)}")
            visit(child, module, (*names, child.name) if named else names)  # type: ignore[attr-defined]

    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        visit(ast.parse(path.read_text()), module, ())
    return found


class FakeAccelerator:
    """Stands for torch.accelerator and for the module of a device; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "is_available": True,
            "device_count": 2,
            "current_accelerator": META,
            "max_memory_allocated": 7,
            "get_memory_info": (3, 11),
            "get_device_name": "Fake 100",
            "get_rng_state": torch.zeros(4, dtype=torch.uint8),
        }

        def answer(*given: Any, **named: Any) -> Any:
            self.asked.append(name)
            return answers.get(name)

        return answer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    found = FakeAccelerator()
    monkeypatch.setattr(torch, "accelerator", found)
    monkeypatch.setattr(torch, "get_device_module", lambda device: found)
    return found


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Places that were told that the device is an accelerator."""
    found: set[str] = set()
    real = device.is_accelerator

    def is_accelerator(asked: torch.device) -> bool:
        code, name = sys._getframe(1).f_code, sys._getframe(1).f_globals["__name__"]
        parts = [part for part in code.co_qualname.split(".") if not part.startswith("<")]
        if real(asked):
            found.add(f"{name.removeprefix('titanrun.')}:{'.'.join(parts)}")
        return real(asked)

    for place in find_places():
        module = import_module(f"titanrun.{place.partition(':')[0]}")
        monkeypatch.setattr(module, "is_accelerator", is_accelerator)
    return found


class FakeStream:
    """Stands for a stream, an event and the context of either."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.waited = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: FakeStream()


def ask_the_device(fake: FakeAccelerator) -> None:
    assert device.select_device("auto", local_rank=1).type == META.type
    assert not device.resolves_to_cpu("auto")
    with pytest.raises(ProblemsFound, match="local rank 2 has no accelerator"):
        device.select_device("gpu", local_rank=2)
    assert not device.emulates_bfloat16(META)
    assert device.get_device_name(META) == "Fake 100"
    device.synchronize_device(META)
    assert device.get_peak_memory_bytes(META) == 7
    assert device.get_total_memory_bytes(META) == 11
    device.reset_peak_memory(META)
    # its effect, none, is tested in a process of its own
    with freed_memory.keep_freed_memory(META):
        pass
    assert {"synchronize", "reset_peak_memory_stats"} <= set(fake.asked)


def keep_random_states(fake: FakeAccelerator) -> None:
    states = determinism.get_rng_states(META)
    assert states["torch.device"].tolist() == [0] * 4
    determinism.set_rng_states(states, META)
    assert fake.asked[-2:] == ["get_rng_state", "set_rng_state"]


def copy_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Stream", FakeStream)
    monkeypatch.setattr(torch, "Event", FakeStream)
    recorded: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(self))
    source = torch.empty(2, device=META)
    HostCopies().start({"a": (torch.empty(2, device=META), source)}, is_locked=True)
    assert recorded and recorded[0] is source
    assert async_save.are_on_accelerator([source])
    timer = DeviceTimer(META)
    timer.start()
    timer.stop()
    assert len(timer._pairs) == 1


def build_masks() -> None:
    config = CausalMask(separates_documents=True)
    documents = torch.empty(2, 64, dtype=torch.int64, device=META)
    starts = torch.empty(2, 4, dtype=torch.int32, device=META)
    assert isinstance(attention.FlexAttention(config).build_mask(64, documents, device=META), tuple)
    seen = attention.VarlenAttention(config).build_mask(
        64, documents, device=META, document_starts_BM=starts
    )
    assert isinstance(seen, tuple)
    assert "CausalBias" in type(sdpa_attention.build_causal_mask(2, 4, META)).__name__


def multiply() -> None:
    left, right = (torch.empty(4, 4, dtype=torch.bfloat16, device=META) for _ in range(2))
    assert head_products.multiply_in_fp32(left, right).dtype == torch.float32
    total = torch.empty(4, 4, device=META)
    head_products.PLAIN_PRODUCTS.add_weight_gradient_(total, left, right)
    assert not grad_norm.needs_full_gradient(left, META)


def build_a_run(recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collator = build_data.enable_pin_memory(
        TokenCollator(), DataLoaderConfig(pin_memory=True), META
    )
    assert isinstance(collator, TokenCollator) and collator.pin_memory
    for name in ("set_variable", "override_variable"):
        monkeypatch.setattr(flight_recorder, name, lambda *given: None)
    comm = CommConfig(trace_buf_size=10)
    flight_recorder.enable_flight_recorder(comm, folder, META)
    assert (folder / comm.save_traces_folder).is_dir()
    with pytest.raises(ProblemsFound, match="varlen attention requires a 16-bit dtype"):
        build_model.check_attention_dtype(recipe, META, get_precision("float32", "float32"))


def run_backward_in_a_thread(fake: FakeAccelerator) -> None:
    """Of a pair of passes, the one in a thread of its own has the device of its stage."""
    done: list[str] = []
    stage = SimpleNamespace(
        stage_index=0,
        device=torch.device("meta", 1),
        is_first=True,
        is_last=True,
        forward_one_chunk=lambda *given, **named: done.append("forward"),
        backward_one_chunk=lambda *given, **named: done.append(fake.asked[-1]),
    )
    schedule = SimpleNamespace(
        _stages=[stage],
        _n_microbatches=2,
        backward_counter=Counter(),
        _assert_unsharded=lambda stage: None,
        _maybe_get_loss=lambda stage, number: None,
        _maybe_compute_loss=lambda *given: None,
    )
    action: Any = SimpleNamespace(stage_index=0, microbatch_index=0)
    context: Any = SimpleNamespace(
        schedule_ref=schedule, arg_mbs=[()], kwarg_mbs=[{}], target_mbs=None
    )
    pair: Any = SimpleNamespace(sub_actions=(action, action))
    dual_pipe_overlap.run_overlapped_pair(dual_pipe_overlap.OverlapBarrier(), pair, context)
    assert sorted(done) == ["forward", "set_device_index"]


def join_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group has a back end for the host and one for this rank's device."""
    joined: list[tuple[Any, ...]] = []
    group = process_group.dist
    monkeypatch.setattr(group, "get_default_backend_for_device", lambda kind: "nccl")
    monkeypatch.setattr(
        group,
        "init_process_group",
        lambda backend, **named: joined.append((backend, named["device_id"])),
    )
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(group, name, lambda: None)
    with process_group.open_process_group(
        torch.distributed.HashStore(), RankInfo(), device=META, comm=CommConfig()
    ):
        assert joined == [("cpu:gloo,meta:nccl", META)]


def exchange_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one call sends is read by the next, from page-locked memory, after its event."""
    real, events, locked = torch.empty_like, [], []
    own: Any = SimpleNamespace(stop_signal="SIGTERM", pop_save_request=lambda: True)

    def allocate(source: torch.Tensor, *, device: str, pin_memory: bool) -> torch.Tensor:
        locked.append(pin_memory)
        return real(source, device=device)

    class FakeEvent:
        """Remembers what happens to it."""

        def __init__(self, kind: str) -> None:
            assert kind == META.type

        def record(self) -> None:
            events.append("record")

        def synchronize(self) -> None:
            events.append("synchronize")

    monkeypatch.setattr(torch, "empty_like", allocate)
    monkeypatch.setattr(torch, "Event", FakeEvent)
    # values stay in memory of the host
    monkeypatch.setattr(torch.Tensor, "to", lambda values, *given, **named: values)
    monkeypatch.setattr(synced_signals.dist, "all_reduce", lambda values, op: None)
    signals = synced_signals.SyncedSignals(own, META)
    signals.sync()
    assert not signals.should_stop and not signals.pop_save_request() and locked == [True]
    signals.sync()
    assert signals.stop_signal == "SIGTERM" and signals.pop_save_request()
    assert events == ["record", "synchronize", "record"]


def test_every_place_is_executed_for_an_accelerator(
    executed: set[str], fake: FakeAccelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_meta_kernels(monkeypatch)
    recipe = resolve_text(
        tmp_path,
        "model: {name: llama3, flavor: debugmodel, n_layers: 1, attention: {backend: varlen}}\n"
        "optimizer: {name: adamw, state_dtype: bfloat16}\ntraining: {dataset: tiny, seq_len: 64}",
    )
    engine, guard = build_meta_engine(recipe), NonFiniteGuard(device=META)
    train_step(engine, guard, 1, [draw_batch(recipe)])
    assert guard.defers_checks
    ask_the_device(fake)
    keep_random_states(fake)
    build_masks()
    multiply()
    StepMetrics(META).add("a", torch.empty((), device=META), "sum")
    copy_to_the_host(monkeypatch)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    recorded = hardware_info.get_hardware_info(META)
    assert (recorded["device_name"], recorded["allocator"]) == (
        "Fake 100",
        "expandable_segments:True",
    )
    build_a_run(recipe, tmp_path, monkeypatch)
    run_backward_in_a_thread(fake)
    join_the_group(monkeypatch)
    exchange_signals(monkeypatch)
    assert find_places() - executed == set()
