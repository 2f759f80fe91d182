"""verl's own TrainingWorker drives titanrun's engine and its own, on the same weights and data."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = [
    pytest.mark.verl,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("verl_on_cpu"),
]
STEPS = 20
# what of BaseEngine is verl's own here, and what is not built
INHERITED = {"train_batch", "infer_batch", "delta_pin_snapshots", "prime_delta_snapshots"}
NOT_BUILT = ("get_per_tensor_param_shard", "get_per_tensor_param_delta_shard")


def build_worker(folder: Path, backend: str, **optimizer: Any) -> Any:
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import sft_loss

    from tests.integrations.verl_package.configs import worker_config

    worker = TrainingWorker(config=worker_config(folder, backend, **optimizer))
    worker.set_loss_fn(partial(sft_loss, None))
    worker.reset()
    return worker


def train(worker: Any, steps: int) -> list[dict[str, float]]:
    from verl.utils import tensordict_utils as tu

    from tests.integrations.verl_package.configs import learnable_batch

    return [tu.get(worker.train_batch(learnable_batch()), "metrics") for _ in range(steps)]


def get_losses(steps: list[dict[str, float]]) -> list[float]:
    return [metrics["loss"] for metrics in steps]


def infer(worker: Any) -> list[torch.Tensor]:
    from tests.integrations.verl_package.configs import learnable_batch

    found = worker.infer_batch(learnable_batch())["log_probs"]
    # the last token of a sequence: verl has the next sequence's first token there
    return [row[:-1] for row in found.unbind()]


def test_a_bare_import_of_verl_finds_the_backend(
    tmp_path: Path, worker_environment: dict[str, str]
) -> None:
    import os
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["verl.plugins"]["titanrun"]
    info = tmp_path / "titanrun-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: titanrun\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[verl.plugins]\ntitanrun = {named}\n")
    code = (
        "import verl\n"
        "from verl.workers.engine.base import BaseEngine, EngineRegistry\n"
        "found = EngineRegistry.get_engine_cls('language_model', 'titanrun')\n"
        "assert issubclass(found, BaseEngine)\n"
        "print(found.__module__)\n"
    )
    environment = {
        **os.environ,
        **worker_environment,
        "VERL_USE_EXTERNAL_PLUGINS": "auto",
        "VERL_USE_EXTERNAL_MODULES": "tests.integrations.verl_package.cpu_platform",
    }
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.stdout.strip() == named, run.stderr[-2000:]


def test_doctor_says_that_verl_finds_the_backend(tmp_path: Path) -> None:
    import json
    import os

    run = subprocess.run(
        [sys.executable, "-m", "titanrun", "doctor", "--no-training", "--json"],
        env={**os.environ, "VERL_USE_EXTERNAL_MODULES": "", "VERL_PLATFORM": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    findings = [json.loads(line) for line in run.stdout.splitlines()]
    (found,) = [each for each in findings if each["topic"] == "verl"]
    assert found["text"] == "0.9.1; it finds the backend titanrun" and not found["wrong"]


def test_every_name_of_the_base_class_is_there() -> None:
    from verl.workers.engine.base import BaseEngine

    from titanrun.integrations.verl.registered_engine import TitanrunEngine

    names = {name for name in dir(BaseEngine) if not name.startswith("_")}
    assert names - set(vars(TitanrunEngine)) == INHERITED
    bare = object.__new__(TitanrunEngine)
    for name in (*NOT_BUILT, "prime_delta_snapshots"):
        with pytest.raises(NotImplementedError, match="exports whole weights only: use"):
            getattr(bare, name)()


def test_it_takes_torchtitans_place_only_where_that_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from verl.workers.engine.base import BaseEngine, EngineRegistry

    from titanrun.integrations.verl.registered_engine import TitanrunEngine, take_torchtitan_place

    class TorchTitanEngine(BaseEngine):
        """What verl has on accelerators where torchtitan is installed."""

    others = EngineRegistry._engines["language_model"].copy()
    others.pop("torchtitan", None)
    monkeypatch.setitem(EngineRegistry._engines, "language_model", others)
    EngineRegistry.register("language_model", "torchtitan", "cuda", vendor="nvidia")(
        TorchTitanEngine
    )
    assert take_torchtitan_place() == ["cpu"]
    assert "torchtitan on cuda stays its own TorchTitanEngine" in caplog.text
    assert EngineRegistry.get_engine_cls("language_model", "torchtitan") is TitanrunEngine
    assert others["torchtitan"]["cuda", "nvidia"] is TorchTitanEngine
    assert take_torchtitan_place() == []
    del others["torchtitan"]
    assert take_torchtitan_place() == ["cpu", "cuda"]


def test_configs_of_verls_strategy_torchtitan_train_in_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from verl.workers.config import TorchtitanEngineConfig
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import sft_loss

    from tests.integrations.verl_package.configs import worker_config
    from titanrun.integrations.verl.registered_engine import take_torchtitan_place

    others = EngineRegistry._engines["language_model"].copy()
    others.pop("torchtitan", None)
    monkeypatch.setitem(EngineRegistry._engines, "language_model", others)
    take_torchtitan_place()
    config = worker_config(folder, "titanrun")
    settings = {
        each.name: getattr(config.engine_config, each.name)
        for each in dataclasses.fields(TorchtitanEngineConfig)
        if each.init and not each.name.startswith("_")
    }
    engine = TorchtitanEngineConfig(**{**settings, "strategy": "torchtitan"})
    worker = TrainingWorker(config=dataclasses.replace(config, engine_config=engine))
    worker.set_loss_fn(partial(sft_loss, None))
    worker.reset()
    expected = train(build_worker(folder, "titanrun"), 2)
    assert get_losses(train(worker, 2)) == get_losses(expected)


def test_losses_norms_and_log_probs_are_those_of_verls_own_engine(folder: Path) -> None:
    # at a high learning rate, rounding that differs between processors grows from step to step
    own, theirs = (build_worker(folder, each, lr=3e-3) for each in ("titanrun", "fsdp2"))
    assert type(own.engine) is not type(theirs.engine)
    assert type(own.engine.engine.handle.engine.model) is not type(theirs.engine.module)
    for one, other in zip(infer(own), infer(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6)
    ours, expected = train(own, STEPS), train(theirs, STEPS)
    for found, wanted in zip(ours, expected, strict=True):
        assert set(found) == set(wanted)
        assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
        assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
        assert found["lr"] == pytest.approx(wanted["lr"])
    assert ours[-1]["loss"] < 0.9 * ours[0]["loss"]
    # a learning rate that is 1 % off is told apart
    off = train(build_worker(folder, "titanrun", lr=3.03e-3), STEPS)
    assert abs(off[-1]["loss"] - expected[-1]["loss"]) > 1e-4


def test_saved_moved_and_exported_state_is_that_of_verls_engine(
    folder: Path, tmp_path: Path
) -> None:
    # of Adam's updates, which divide by small numbers, the seventh digit differs
    own, theirs = (build_worker(folder, each, lr=1e-3) for each in ("titanrun", "fsdp2"))
    train(own, 3), train(theirs, 3)
    own.to("cpu"), own.to("device")
    exported = dict(own.engine.get_per_tensor_param()[0])
    expected = {
        name: tensor.to(torch.bfloat16) for name, tensor in theirs.engine.get_per_tensor_param()[0]
    }
    assert exported.keys() == expected.keys()
    # in steps of bfloat16 between two numbers of one sign
    steps = [
        (exported[name].view(torch.int16).int() - tensor.view(torch.int16).int()).abs()
        for name, tensor in expected.items()
    ]
    assert max(int(each.max()) for each in steps) <= 1
    differing = sum(int((each != 0).sum()) for each in steps)
    assert differing <= max(1, sum(tensor.numel() for tensor in expected.values()) // 10_000)
    own.save_checkpoint(str(tmp_path / "global_step_3"), global_step=3)
    further = get_losses(train(own, 2))
    later = build_worker(folder, "titanrun", lr=1e-3)
    later.load_checkpoint(str(tmp_path / "global_step_3"))
    assert get_losses(train(later, 2)) == further


def test_the_schedule_has_the_steps_that_the_trainer_fills_in_late(folder: Path) -> None:
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import sft_loss

    from tests.integrations.verl_package.configs import worker_config

    config = worker_config(folder, "titanrun", min_lr_factor=0.0)
    worker = TrainingWorker(config=config)
    config.optimizer_config.total_training_steps = 4
    worker.set_loss_fn(partial(sft_loss, None))
    worker.reset()
    first = train(worker, 3)
    # the rates of the next steps: linear down to zero at the fourth
    assert [metrics["lr"] for metrics in first] == pytest.approx([0.0075, 0.005, 0.0025])
    worker.reset()
    assert get_losses(train(worker, 3)) == get_losses(first)


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest fp32 tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor) and each.untyped_storage().nbytes() == (
                each.numel() * 4
            ):
                self.largest = max(self.largest, each.numel())
        return out


def test_chunked_and_recomputed_entropy_is_the_same_and_smaller() -> None:
    from titanrun.distributed.vocab_parallel import compute_token_entropy

    torch.manual_seed(0)
    logits = torch.randn(1, 64, 50, requires_grad=True)
    found = []
    for options in ({}, {"chunk_tokens": 7}, {"chunk_tokens": 7, "should_recompute": True}):
        logits.grad = None
        with LargestTensor() as seen, torch.no_grad():
            compute_token_entropy(logits, **options)
        entropy = compute_token_entropy(logits, **options)
        entropy.square().sum().backward()
        found.append((entropy.detach(), logits.grad, seen.largest))
    for entropy, gradient, largest in found[1:]:
        torch.testing.assert_close(entropy, found[0][0], rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=1e-6)
        assert largest * 4 < found[0][2]
