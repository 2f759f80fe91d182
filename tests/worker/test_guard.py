"""Loss or gradients that stop being numbers: each policy, what is left untouched, and what is
written down."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.hooks.status_hook import StatusHook
from titanrun.training.loop import TrainLoop
from titanrun.training.nonfinite import NonFiniteError, NonFiniteGuard, StepValues
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.train_hook import TrainHook, TrainResult
from titanrun.training.update_scalars import reads_update_scalars
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
Spoil = Callable[[TrainLoop], None]


def train(resolved: Path, spoil: Spoil = lambda trainer: None) -> TrainResult:
    """Trains, with something put into the trainer that goes wrong."""
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals
        ) as trainer,
    ):
        spoil(trainer)
        return trainer.train()


def bad_loss(*steps: int, value: float = math.nan, times: int = 1) -> Spoil:
    """Each of these steps gives another loss, the first so many times."""
    left = dict.fromkeys(steps, times)

    def spoil(trainer: TrainLoop) -> None:
        passes: Any = trainer.engine.runner
        loss = passes.loss

        def spoiled(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
            step = trainer.state.step + 1
            is_bad = torch.is_grad_enabled() and left.get(step, 0) > 0
            return loss(logits_BTV, batch) * (value if is_bad else 1.0)

        def count(batches: Any, **others: Any) -> Any:
            output = forward_backward(batches, **others)
            left[trainer.state.step + 1] = left.get(trainer.state.step + 1, 0) - 1
            return output

        forward_backward = trainer.engine.forward_backward
        trainer.engine.runner = replace(passes, loss=spoiled)
        trainer.engine.forward_backward = count  # type: ignore[method-assign]

    return spoil


def bad_gradient(step: int, name: str) -> Spoil:
    """The gradient of one parameter is infinite in one step, the loss is fine."""

    def spoil(trainer: TrainLoop) -> None:
        def poison(gradient: Tensor) -> Tensor:
            return (
                torch.full_like(gradient, math.inf) if trainer.state.step + 1 == step else gradient
            )

        trainer.engine.model.get_parameter(name).register_hook(poison)

    return spoil


def losses(resolved: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]


def evidence(resolved: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (resolved.parent / "logs" / f"non-finite-step-{step}-rank-0.json").read_text()
    )
    return found


@pytest.mark.parametrize(
    "spoil",
    [bad_loss(4), bad_loss(4, value=math.inf), bad_gradient(4, "layers.1.attention.wq.weight")],
)
def test_a_bad_step_stops_the_run_before_its_update(run: Run, spoil: Spoil) -> None:
    weights = {}

    def keep(trainer: TrainLoop) -> None:
        spoil(trainer)
        weights["now"] = trainer.engine

    with pytest.raises(NonFiniteError) as error:
        train(run("bad"), keep)
    assert error.value.step == 4
    assert all(tensor.isfinite().all() for tensor in weights["now"].named_state_tensors().values())
    assert len(losses(run("bad"))) == 3


def test_what_is_known_about_a_bad_step_is_written_down(run: Run) -> None:
    name = "layers.1.attention.wq.weight"
    with pytest.raises(NonFiniteError):
        train(run("bad"), bad_gradient(4, name))
    found = evidence(run("bad"), 4)
    assert (found["policy"], found["step"], found["grad_norm"]) == ("stop", 4, "inf")
    assert found["bad_gradients"] == [name]
    assert len(found["rows"]) == 4
    assert len(found["gradient_norms"]) > 20


def test_the_module_and_the_rows_that_gave_a_bad_output_are_named(run: Run) -> None:
    def spoil(trainer: TrainLoop) -> None:
        def poison(_module: Any, _inputs: Any, output_BTD: Tensor) -> Tensor:
            if trainer.state.step + 1 < 3:
                return output_BTD
            return output_BTD.index_fill(0, torch.tensor([1]), math.nan)

        trainer.engine.model.get_submodule("layers.1.feed_forward").register_forward_hook(poison)

    with pytest.raises(NonFiniteError):
        train(run("bad"), spoil)
    found = evidence(run("bad"), 3)
    assert found["first_bad_module"] == "layers.1.feed_forward"
    # two passes of two rows: the second of each
    assert found["bad_rows"] == found["rows"][1::2]


def states_before_and_after(trainer: TrainLoop, seen: dict[int, list[dict[str, Tensor]]]) -> None:
    """Keeps weights and optimizer state around each update."""
    optim_step = trainer.engine.optim_step

    def kept(**options: Any) -> Any:
        before = {
            name: tensor.clone() for name, tensor in trainer.engine.named_state_tensors().items()
        }
        update = optim_step(**options)
        seen[trainer.state.step + 1] = [
            before,
            {name: tensor.clone() for name, tensor in trainer.engine.named_state_tensors().items()},
        ]
        return update

    trainer.engine.optim_step = kept  # type: ignore[method-assign]


@pytest.mark.parametrize("spoil", [bad_loss(4), bad_gradient(4, "layers.1.attention.wq.weight")])
def test_a_skipped_step_leaves_every_bit_of_weights_and_optimizer(run: Run, spoil: Spoil) -> None:
    seen: dict[int, list[dict[str, Tensor]]] = {}

    def both(trainer: TrainLoop) -> None:
        states_before_and_after(trainer, seen)
        spoil(trainer)

    resolved = run("skipping", "guard.non_finite=skip")
    assert train(resolved, both).state == "finished"
    before, after = seen[4]
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    before, after = seen[5]
    assert not torch.equal(before["model.output.weight"], after["model.output.weight"])
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    assert [line["step"] for line in lines if "guard/skipped_steps" in line] == [4]
    assert [line["step"] for line in lines if not math.isfinite(line["grad_norm"])] == [4]


def test_a_skipped_step_is_a_step_of_the_schedule_and_of_the_data(run: Run) -> None:
    plain, skipping = run("plain"), run("skipping", "guard.non_finite=skip")
    train(plain)
    train(skipping, bad_loss(4))
    for name in ("lr", "tokens_seen"):
        values = [
            [line[name] for line in read_metrics(path.parent / "metrics.jsonl")]
            for path in (plain, skipping)
        ]
        assert values[0] == values[1]
    assert losses(plain)[:3] == losses(skipping)[:3]


def test_a_run_that_skips_too_often_stops(run: Run) -> None:
    resolved = run("skipping", "guard.non_finite=skip", "guard.max_skips=2")
    with pytest.raises(
        NonFiniteError,
        match=r"^loss is nan at step 6, and the 2 updates before were skipped \(guard.max_skips\)$",
    ):
        train(resolved, bad_loss(4, 5, 6))
    # two in a row are fine as often as they come
    assert (
        train(
            run("again", "guard.non_finite=skip", "guard.max_skips=2"), bad_loss(2, 3, 5, 6, 8, 9)
        ).state
        == "finished"
    )


ROLLBACK = ("guard.non_finite=rollback", "checkpoint.interval=3")


def test_a_run_goes_back_and_leaves_the_bad_data_out(run: Run) -> None:
    resolved = run("back", *ROLLBACK)
    numbers: list[list[int]] = []

    def spoil(trainer: TrainLoop) -> None:
        bad_loss(5)(trainer)
        source: Any = trainer.source
        loader = source.dataloader
        next_rows = loader.next_samples

        class Noting:
            def has_next(self) -> bool:
                return bool(loader.has_next())

            def collect_metrics(self) -> dict[str, float]:
                return {}

            def next_samples(self) -> Any:
                rows = next_rows()
                numbers.append(loader.last_indices())
                return rows

        source.dataloader = Noting()

    assert train(resolved, spoil).state == "finished"
    # steps 1 to 5, back to 3, and 7 more steps of new data
    assert len(numbers) == 5 + 7
    assert len(losses(resolved)) == 10
    assert all(map(math.isfinite, losses(resolved)))


def test_going_back_is_the_checkpoint_bit_by_bit(run: Run) -> None:
    plain, back = run("plain", "checkpoint.interval=3"), run("back", *ROLLBACK)
    seen: dict[int, list[dict[str, Tensor]]] = {}
    train(plain, lambda trainer: states_before_and_after(trainer, seen))
    expected = seen[4][0]
    seen.clear()
    firsts: list[dict[str, Tensor]] = []

    def both(trainer: TrainLoop) -> None:
        bad_loss(5)(trainer)
        states_before_and_after(trainer, seen)
        go_back = trainer.checkpoints.rollback  # type: ignore[union-attr]

        def kept() -> int | None:
            step = go_back()
            firsts.append(
                {
                    name: tensor.clone()
                    for name, tensor in trainer.engine.named_state_tensors().items()
                }
            )
            return step

        trainer.checkpoints = Kept(trainer.checkpoints, kept)

    train(back, both)
    assert all(torch.equal(tensor, firsts[0][name]) for name, tensor in expected.items())


class Kept:
    """Checkpoints whose way back is watched."""

    def __init__(self, checkpoints: Any, go_back: Callable[[], int | None]) -> None:
        self.rollback = go_back
        self.prepare, self.save, self.save_seed = (
            checkpoints.prepare,
            checkpoints.save,
            checkpoints.save_seed,
        )
        self.check, self.last_save_seconds = checkpoints.check, None


def test_a_run_that_goes_back_too_often_stops(run: Run) -> None:
    resolved = run("back", *ROLLBACK, "guard.max_rollbacks=2")
    with pytest.raises(
        NonFiniteError,
        match=r"^loss is nan at step 5, and the run went back 2 times already "
        r"\(guard.max_rollbacks\)$",
    ):
        train(resolved, bad_loss(5, times=9))


def test_without_a_checkpoint_there_is_no_way_back(run: Run) -> None:
    with pytest.raises(NonFiniteError, match="no checkpoint to roll back to"):
        train(run("back", *ROLLBACK), bad_loss(2))


def test_spoiled_weights_are_kept_apart_and_never_gone_on_from(run: Run) -> None:
    resolved = run("spoiled", "checkpoint.interval=3")

    def spoil(trainer: TrainLoop) -> None:
        def poke(step: int) -> None:
            if step == 6:
                with torch.no_grad():
                    trainer.engine.model.get_parameter("norm.weight")[0] = math.nan

        trainer.hooks = (StatusHook(poke), *trainer.hooks)

    with pytest.raises(
        NonFiniteError, match=r"^the state to save \(model.norm.weight\) is not finite at step 6"
    ):
        train(resolved, spoil)
    folder = resolved.parent / "checkpoint"
    assert sorted(entry.name for entry in folder.iterdir()) == ["non-finite", "step-3"]
    assert (folder / "non-finite" / "step-6" / "manifest.json").exists()
    assert train(resolved).step == 10


def test_spikes_are_counted_and_told_and_no_nan_raises_the_bar(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (
        "training.steps=30",
        "guard.non_finite=skip",
        "guard.spike_window=8",
        "guard.spike_sigmas=20",
        "checkpoint.enable=false",
    )

    def spoil(trainer: TrainLoop) -> None:
        bad_loss(12)(trainer)
        bad_loss(20, value=100.0)(trainer)

    resolved = run("spiking", *settings)
    train(resolved, spoil)
    spikes = [
        line["step"]
        for line in read_metrics(resolved.parent / "metrics.jsonl")
        if "guard/loss_spikes" in line
    ]
    assert spikes == [20]
    assert "loss spike" in caplog.text and "the median of the last 8 is" in caplog.text


def test_no_spike_is_told_where_nobody_asked(run: Run) -> None:
    resolved = run(
        "quiet", "training.steps=30", "guard.spike_sigmas=null", "checkpoint.enable=false"
    )
    train(resolved, bad_loss(20, value=100.0))
    assert not [
        line
        for line in read_metrics(resolved.parent / "metrics.jsonl")
        if "guard/loss_spikes" in line
    ]


def test_a_way_back_to_damaged_checkpoints_only_is_refused(run: Run) -> None:
    resolved = run("back", *ROLLBACK)

    def spoil(trainer: TrainLoop) -> None:
        bad_loss(5)(trainer)

        def damage(step: int) -> None:
            if step == 4:
                (resolved.parent / "checkpoint/step-3/manifest.json").unlink()

        trainer.hooks = (StatusHook(damage), *trainer.hooks)

    with pytest.raises(ProblemsFound, match=r"step-3"):
        train(resolved, spoil)


class SaveLimits(TrainHook):
    """Notes the limit of each save while it lasts."""

    def __init__(self) -> None:
        self.found: list[float | None] = []

    def on_step_begin(self, loop: TrainLoop) -> None:
        """Let the first save end before the second, however busy the machine is."""
        while self.found and loop.checkpoints.last_save_seconds is None:
            time.sleep(0.01)

    def on_pre_save(self, loop: TrainLoop) -> None:
        self.found.append(loop.watchdog.compute_limit(loop.watchdog.phase)[0])


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_the_limit_of_a_save_follows_from_the_save_before(run: Run, mode: str) -> None:
    limits = SaveLimits()

    def spoil(trainer: TrainLoop) -> None:
        trainer.hooks += (limits,)

    train(run("run", "checkpoint.interval=5", f"checkpoint.async_mode={mode}"), spoil)
    assert limits.found == [3600, 300]


def bad_tokens(step: int) -> Spoil:
    """The loss of the batch of this step is no number, whenever it is computed."""
    bad: list[Tensor] = []

    def spoil(trainer: TrainLoop) -> None:
        passes: Any = trainer.engine.runner
        loss = passes.loss

        def spoiled(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
            if trainer.state.step + 1 == step and torch.is_grad_enabled() and not bad:
                bad.append(batch.tokens)
            is_bad = bool(bad) and torch.equal(bad[0], batch.tokens)
            return loss(logits_BTV, batch) * (math.nan if is_bad else 1.0)

        trainer.engine.runner = replace(passes, loss=spoiled)

    return spoil


def as_on_an_accelerator(trainer: TrainLoop, *, is_fused: bool) -> None:
    """Values are read when they are logged, and the optimizer's kernel is asked to refuse."""
    trainer.guard.device = torch.device("meta")
    assert reads_update_scalars(trainer.engine.optimizer) is is_fused
    trainer.engine.uses_update_scalars = is_fused  # type: ignore[misc]


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_a_bad_step_that_is_read_late_leaves_evidence(run: Run, implementation: str) -> None:
    seen: dict[str, Any] = {}

    def spoil(trainer: TrainLoop) -> None:
        bad_tokens(3)(trainer)
        as_on_an_accelerator(trainer, is_fused=implementation == "fused")
        seen["engine"] = trainer.engine

    settings = (
        f"optimizer.implementation={implementation}",
        "metrics.log_freq=10",
        "lr_scheduler.total_steps=10",
    )
    resolved = run("bad", *settings, "training.steps=10")
    with pytest.raises(NonFiniteError) as error:
        train(resolved, spoil)
    assert (error.value.step, error.value.exit_code) == (3, 5)
    found = evidence(resolved, 3)
    assert found["loss"] == "nan" and found["bad_gradients"]
    weights = dict(seen["engine"].model.named_parameters())
    if implementation == "foreach":
        assert found["weights"] == "after 8 further updates"
        return
    assert found["weights"] == "of the step"

    def keep(trainer: TrainLoop) -> None:
        as_on_an_accelerator(trainer, is_fused=True)
        seen["good"] = trainer.engine

    train(run("good", *settings, "training.steps=2"), keep)
    for name, weight in seen["good"].model.named_parameters():
        assert torch.equal(weights[name], weight), name


def test_values_are_read_before_too_many_inputs_are_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread: list[int] = []
    read = NonFiniteGuard.read

    def count(guard: NonFiniteGuard) -> StepValues:
        unread.append(len(guard._inputs))
        return read(guard)

    monkeypatch.setattr(NonFiniteGuard, "read", count)
    resolved = run("late", "training.steps=36", "metrics.log_freq=100", "checkpoint.enable=false")
    train(resolved, lambda trainer: as_on_an_accelerator(trainer, is_fused=True))
    # the first step is logged, and so is the last
    assert [number for number in unread if number] == [1, 32, 3]
