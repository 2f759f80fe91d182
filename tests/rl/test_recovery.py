"""What RL shares with pretraining: recovery, checks of the machine, lengths in epochs."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rl.test_runs import numbers, write_run
from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.rank_env import RankInfo
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.trainer_kinds import load_trainer_builder
from titanrun.rl.nonfinite_rollouts import collect_token_ids
from titanrun.rl.rollout_source import RolloutSource
from titanrun.training.hooks.status_hook import StatusHook
from titanrun.training.hooks.straggler_hook import StragglerHook
from titanrun.training.loop import TrainLoop
from titanrun.training.nonfinite import NonFiniteError
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.step_replay import CorruptionError
from titanrun.training.stragglers import StragglerDetector
from titanrun.training.train_hook import TrainResult
from titanrun.worker.worker_job import rendezvous

SAVING = "checkpoint={enable: true, interval: 2}"
QUIET = "rl.validation.dataset=null"
# no step is dropped
LEARNING = "rl.rollout={prompts_per_step: 2, samples_per_prompt: 4, drop_zero_variance: false}"


def train(
    folder: Path, *overrides: str, change: Callable[[TrainLoop], None] = lambda loop: None
) -> TrainResult:
    """Train the tiny recipe in this process, with something changed in its loop."""
    resolved = write_run(folder, QUIET, LEARNING, *overrides)
    with (
        SignalRequests() as signals,
        load_trainer_builder("rl")(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals
        ) as loop,
    ):
        change(loop)
        result: TrainResult = loop.train()
        return result


def scale_loss(*calls: int, factor: float = math.nan) -> Callable[[TrainLoop], None]:
    """Multiply the losses of some steps, counted from 1 in the order in which they are tried."""

    def change(loop: TrainLoop) -> None:
        source: Any = loop.source
        assert isinstance(source, RolloutSource)
        next_input, loss, tried = source.next_input, source.loss, [0]

        def counting() -> Any:
            tried[0] += 1
            return next_input()

        source.loss = lambda *given: loss(*given) * (factor if tried[0] in calls else 1.0)
        loop.source = Replaced(source, next_input=counting)  # type: ignore[assignment]

    return change


class Replaced:
    """An object of which some methods are replaced."""

    def __init__(self, original: Any, **methods: Any) -> None:
        self.__dict__["original"] = original
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


@pytest.mark.parametrize("transport", ["in_process", "file"])
def test_a_bad_step_takes_the_run_back_to_its_checkpoint(tmp_path: Path, transport: str) -> None:
    seen: list[tuple[int, int, int]] = []
    sources: list[RolloutSource] = []

    def change(loop: TrainLoop) -> None:
        assert isinstance(loop.source, RolloutSource)
        sources.append(loop.source)
        scale_loss(4)(loop)
        note = lambda step: seen.append(  # noqa: E731
            (step, loop.engine.policy_version, sources[0].runner.generator.version)
        )
        loop.hooks = (StatusHook(note), *loop.hooks)

    result = train(
        tmp_path / "run",
        "training.steps=5",
        SAVING,
        "guard.non_finite=rollback",
        f"rl.sync={{transport: {transport}, keep_versions: 1}}",
        "rl.schedule={target_offpolicy: 1, window: 0.5}",
        change=change,
    )
    assert (result.state, result.step) == ("finished", 5)
    # the fourth step is bad: back to 2 and its version, which the generator gets too
    assert seen == [(step, step, step) for step in (1, 2, 3, 3, 4, 5)]
    assert all(group.policy_version <= 5 for group in sources[0].state.rollout_buffer.groups)
    assert all(math.isfinite(line["loss"]) for line in numbers(tmp_path / "run"))
    assert [line["step"] for line in numbers(tmp_path / "run")] == [1, 2, 3, 4, 5]


def test_a_rollback_restores_the_weights_and_skips_the_prompts_since(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    def change(loop: TrainLoop) -> None:
        scale_loss(4)(loop)
        source: Any = loop.source
        rollback, saved = source.on_rollback, {}

        def note(step: int) -> None:
            if step == 2 and not saved:
                saved.update({n: t.clone() for n, t in loop.engine.named_state_tensors().items()})
                kept["group"] = source.state.next_group

        def compare(step: int) -> None:
            kept["step"], kept["rows"] = step, source.dataloader.state_dict()["rows_read"]
            kept["restored_group"] = source.state.next_group
            kept["equal"] = all(
                torch.equal(tensor, saved[name])
                for name, tensor in loop.engine.named_state_tensors().items()
            )
            rollback(step)
            weights = dict(loop.engine.model.named_parameters())
            kept["generator"] = all(
                torch.equal(tensor, weights[name])
                for name, tensor in source.runner.generator.model.named_parameters()
            )
            kept["buffer"] = len(source.state.rollout_buffer.groups)

        loop.source = Replaced(source, on_rollback=compare)  # type: ignore[assignment]
        loop.hooks = (StatusHook(note), *loop.hooks)

    ahead = "rl.schedule={target_offpolicy: 1, window: 0.5}"
    rollback = "guard.non_finite=rollback"
    train(tmp_path / "run", "training.steps=5", SAVING, rollback, ahead, change=change)
    # the first step admits four groups, each later one two
    assert kept["step"] == 2 and kept["rows"] == 10
    assert kept["equal"] and kept["generator"]
    assert kept["restored_group"] == kept["group"] and kept["buffer"] == 0


def test_without_a_checkpoint_there_is_no_way_back(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="no checkpoint to roll back to"):
        train(tmp_path / "run", SAVING, "guard.non_finite=rollback", change=scale_loss(1))


EXPERTS = (
    "model={name: qwen3, flavor: null, vocab_size: 56, dim: 16, n_layers: 2, n_heads: 2, "
    "n_kv_heads: 1, head_dim: 8, max_seq_len: 64, tie_word_embeddings: false, "
    "attention: {mask: block_causal}, feed_forward: {hidden_dim: 32}, "
    "moe: {num_experts: 4, top_k: 2, hidden_dim: 32, num_shared_experts: 0, score_func: sigmoid, "
    "route_norm: false, route_scale: 1.0, gate_bias: false, score_before_experts: false, "
    "num_expert_groups: null, num_limited_groups: null, load_balance_coeff: 0.001}}"
)


def test_the_tokens_of_a_skipped_step_do_not_count_for_its_experts(tmp_path: Path) -> None:
    """Row A11 of the defect list: the next update balanced experts by the skipped tokens too."""
    before, after = list[float](), list[float]()

    def change(loop: TrainLoop) -> None:
        scale_loss(2)(loop)
        layers, take_step = get_moe_layers(loop.engine.model), loop.engine.optim_step
        assert len(layers) == 2

        def count() -> float:
            return sum(float(layer.tokens_per_expert.sum()) for layer in layers)

        def watch(**options: Any) -> Any:
            before.append(count())
            update = take_step(**options)
            after.append(count())
            return update

        loop.engine.optim_step = watch  # type: ignore[method-assign]

    train(tmp_path / "run", EXPERTS, "training.steps=3", "guard.non_finite=skip", change=change)
    assert all(before) and after == [0.0, 0.0, 0.0]


def test_an_engine_of_another_loop_forgets_the_tokens_of_dropped_gradients(tmp_path: Path) -> None:
    """Row A11 of the defect list: external loops skip updates, or drop gradients, by themselves."""
    seen: list[float] = []

    def change(loop: TrainLoop) -> None:
        engine, (first, _) = loop.engine, get_moe_layers(loop.engine.model)
        tokens = torch.randint(1, 56, (2, 9), generator=torch.Generator().manual_seed(0))
        for drop in (engine.zero_grad, lambda: engine.optim_step(should_update=lambda norm: False)):
            engine.forward_backward(TokenBatch.from_sequences(tokens))
            seen.append(float(first.tokens_per_expert.sum()))
            drop()
            seen.append(float(first.tokens_per_expert.sum()))

    train(tmp_path / "run", EXPERTS, "training.steps=1", change=change)
    # 16 tokens, two experts each
    assert seen == [32.0, 0.0, 32.0, 0.0]


def test_skipped_steps_are_logged(tmp_path: Path) -> None:
    train(tmp_path / "run", "training.steps=3", "guard.non_finite=skip", change=scale_loss(2))
    counts = {line["step"]: line.get("guard/skipped_steps") for line in numbers(tmp_path / "run")}
    assert counts == {1: None, 2: 1, 3: None}


def test_spikes_are_those_of_the_gradient_norm(tmp_path: Path) -> None:
    settings = ("guard.spike_window=4", "guard.spike_sigmas=20", "optimizer.lr=1.0e-5")
    train(tmp_path / "run", "training.steps=9", *settings, change=scale_loss(8, factor=1e4))
    lines = numbers(tmp_path / "run")
    assert [line["step"] for line in lines if "guard/grad_norm_spikes" in line] == [8]
    assert not any("guard/loss_spikes" in line for line in lines)


def test_a_replayed_step_changes_no_bit_and_a_flipped_one_is_found(tmp_path: Path) -> None:
    twice = ("training.steps=4", "debug.deterministic=true", "guard.replay_interval=2")
    calls = [0]

    def count(loop: TrainLoop) -> None:
        computed = loop.engine.forward_backward

        def counting(*batches: Any, **options: Any) -> Any:
            calls[0] += 1
            return computed(*batches, **options)

        loop.engine.forward_backward = counting  # type: ignore[method-assign]

    def flip(loop: TrainLoop) -> None:
        computed, done = loop.engine.forward_backward, [0]

        def flipping(*batches: Any, **options: Any) -> Any:
            output = computed(*batches, **options)
            done[0] += 1
            if done[0] == 2:
                weight = loop.engine.model.get_parameter("norm.weight").detach()
                weight.view(torch.int32)[0] ^= 1 << 20
            return output

        loop.engine.forward_backward = flipping  # type: ignore[method-assign]

    try:
        train(tmp_path / "plain", *twice[:2])
        train(tmp_path / "twice", *twice, change=count)
        assert calls == [6]
        assert numbers(tmp_path / "plain") == numbers(tmp_path / "twice")
        with pytest.raises(CorruptionError, match=r"at step 2 model\.norm\.weight changed"):
            train(tmp_path / "flipped", *twice, change=flip)
    finally:
        torch.use_deterministic_algorithms(False)


def test_stragglers_are_measured_without_generation(tmp_path: Path) -> None:
    events: list[str] = []

    class Noting(StragglerDetector):
        def mark_step_start(self) -> None:
            events.append("start")

        def mark_collectives_start(self) -> None:
            events.append("stop")

        def after_step(self, step: int) -> None:
            events.append(f"step {step}")

    def change(loop: TrainLoop) -> None:
        source: Any = loop.source
        collect = source.next_input
        noted = lambda: events.append("input") or collect()  # noqa: E731
        loop.source = Replaced(source, next_input=noted)  # type: ignore[assignment]
        hook = StragglerHook(Noting(), includes_input=False)
        loop.hooks = (hook, *loop.hooks)

    train(tmp_path / "run", "training.steps=1", change=change)
    assert events[events.index("input") :] == ["input", "start", "stop", "step 1"]


def test_ranks_have_a_straggler_hook_unless_it_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from titanrun.distributed.object_collectives import RankGroup
    from titanrun.worker.build import build_step_hooks

    monkeypatch.setattr(build_step_hooks, "get_default_rank_group", lambda: RankGroup(0, 2))
    found: list[list[bool]] = []

    def change(loop: TrainLoop) -> None:
        hooks = [hook for hook in loop.hooks if isinstance(hook, StragglerHook)]
        found.append([hook.includes_input for hook in hooks])
        loop.hooks = tuple(hook for hook in loop.hooks if hook not in hooks)

    for ratio in ("3", "null"):
        train(
            tmp_path / f"run-{ratio}", "training.steps=1", f"guard.straggler_ratio={ratio}",
            change=change,
        )  # fmt: skip
    assert found == [[False], []]


def test_a_report_has_the_tokens_of_bad_rollouts(tmp_path: Path) -> None:
    def spoil(loop: TrainLoop) -> None:
        def poison(_module: Any, _inputs: Any, output_BTD: torch.Tensor) -> torch.Tensor:
            return output_BTD * math.nan

        loop.engine.model.get_submodule("layers.0.feed_forward").register_forward_hook(poison)

    with pytest.raises(NonFiniteError):
        train(tmp_path / "run", change=spoil)
    report = json.loads((tmp_path / "run/logs/non-finite-step-1-rank-0.json").read_text())
    assert report["first_bad_module"] == "layers.0.feed_forward"
    assert report["bad_rows"] and len(report["bad_rollouts"]) == 8
    assert all(each["prompt_ids"] and each["completion_ids"] for each in report["bad_rollouts"])


def test_token_ids_are_those_of_prompt_and_completion() -> None:
    from titanrun.components.data.token_batch import TokenSample

    samples = [
        TokenSample([1, 2, 3, 4], [False, False, True, True]),
        TokenSample([5, 6, 7], [False, True, True]),
    ]
    batch = TokenBatch.from_samples(samples, seq_len=8, extra=())
    assert collect_token_ids([batch], [0]) == [
        {"row": 0, "prompt_ids": [1, 2], "completion_ids": [3, 4]},
        {"row": 0, "prompt_ids": [5], "completion_ids": [6, 7]},
    ]


def test_a_length_in_epochs_is_one_of_prompts(tmp_path: Path) -> None:
    epochs = ("training.steps!", "training.epochs=2", "training.dataset.count=5")
    result = train(tmp_path / "run", *epochs, "lr_scheduler.warmup_steps=0")
    # ten prompts, two of them a step
    assert (result.state, result.step) == ("finished", 5)
    again = train(
        tmp_path / "bad", *epochs, "lr_scheduler.warmup_steps=0", SAVING,
        "guard.non_finite=rollback", change=scale_loss(4),
    )  # fmt: skip
    # back from 4 to 2 with one step's prompts left
    assert (again.state, again.step) == ("finished", 3)
    assert again.message == "finished: the data ran out after step 3 of 5"
    assert (tmp_path / "bad/checkpoint/step-3").is_dir()


def test_the_first_save_is_prepared_after_the_first_step(tmp_path: Path) -> None:
    prepared: list[int] = []

    def change(loop: TrainLoop) -> None:
        checkpoints: Any = loop.checkpoints
        loop.checkpoints = Replaced(  # type: ignore[assignment]
            checkpoints, prepare=lambda: prepared.append(loop.state.step)
        )

    train(tmp_path / "run", SAVING, change=change)
    assert prepared == [1]


def test_a_run_without_checkpoints_that_a_signal_stops_has_failed(tmp_path: Path) -> None:
    def change(loop: TrainLoop) -> None:
        stop = lambda step: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
        loop.hooks = (StatusHook(stop), *loop.hooks)

    result = train(tmp_path / "run", "checkpoint.enable=false", change=change)
    assert (result.state, result.step, result.exit_code) == ("failed", 1, 128 + signal.SIGTERM)
    assert result.message.endswith("nothing saved: this run writes no checkpoints")
