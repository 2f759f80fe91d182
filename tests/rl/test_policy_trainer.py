"""PolicyTrainer by torchtitan's names: calls by position, its batches, its metrics."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.parts import on_ranks
from tests.rl.parts import TEXT
from titanrun.rl.flat_microbatch import to_token_batch
from titanrun.rl.policy_metrics import FURTHER_NAMES, build_policy_metrics
from titanrun.rl.policy_trainer import PolicyTrainer
from titanrun.worker.open_engine import open_policy_trainer

# what both of torchtitan's trainers return
FIRST_NAMES = {
    *("advantage_mean", "advantage_std", "logprob_diff_mean", "logprob_diff_max"),
    *("logprob_max_delta", "logprob_bitwise_identical", "ratio_mean", "ratio_clipped_frac"),
    "pg_loss",
}
CURRENT_NAMES = {
    *("loss/mean", "loss/ratio_mean", "loss/ratio_clipped_frac", "bit_wise/logprob_diff/mean"),
    *("bit_wise/logprob_diff/max", "bit_wise/ratio_tokens_different/mean"),
    "trainer/entropy/mean",
}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


@pytest.fixture
def trainer(recipe: str, tmp_path: Path) -> Iterator[PolicyTrainer]:
    made = open_policy_trainer(recipe, checkpoints=tmp_path / "saved")
    yield made
    made.close()


def flat(lengths: tuple[int, ...], seed: int = 0) -> Any:
    """A microbatch of torchtitan's: documents one after the other, a prompt of two tokens each."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return SimpleNamespace(
        token_ids=torch.randint(56, (total,), generator=rng),
        labels=torch.randint(56, (total,), generator=rng),
        positions=positions,
        generator_logprobs=-4 + torch.rand(total, generator=rng) / 10,
        loss_mask=positions > 1,
        advantages=torch.randn(total, generator=rng),
    )


def count_trained(*batches: Any) -> int:
    return sum(int(each.loss_mask.sum()) for each in batches)


def get_gradients(trainer: PolicyTrainer) -> dict[str, torch.Tensor]:
    return {
        name: weight.grad.clone()
        for name, weight in trainer.engine.model.named_parameters()
        if weight.grad is not None
    }


def test_a_loop_of_torchtitans_current_names_called_by_position(
    trainer: PolicyTrainer, tmp_path: Path
) -> None:
    data = [flat((5, 7), 1), flat((9,), 2)]
    count = count_trained(*data)
    trainer.sync_log_step(3, 1)
    for each in data:
        found = trainer.forward_backward([each], count)
        assert found.keys() >= FIRST_NAMES | CURRENT_NAMES
    output = trainer.optim_step()
    assert output.policy_version == 1 == trainer.get_policy_version()
    assert output.metrics["trainer/grad_norm/mean"] == output["grad_norm"] > 0
    assert output.metrics["trainer/lr"] == output["lr"]
    assert trainer.push_model_state_dict() is None
    assert trainer.transport.list_versions() == [1]
    assert trainer.save_checkpoint(7) is True and trainer.save_checkpoint(8, True) is True
    assert sorted(path.name for path in (tmp_path / "saved").glob("step-*")) == ["step-7", "step-8"]
    assert trainer.state_dict() == {"policy_version": 1}
    trainer.load_state_dict({"policy_version": 4})
    assert trainer.get_policy_version() == 4


def test_a_loop_of_torchtitans_first_names_called_by_position(
    trainer: PolicyTrainer, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    found = trainer.forward_backward([[flat((5, 7), 1), flat((9,), 2)]])
    with pytest.raises(ValueError, match="two means do not add up"):
        trainer.forward_backward([flat((5,))])
    assert dict(trainer.optim_step()).keys() == {"grad_norm", "lr", "is_skipped", "policy_version"}
    assert trainer.save_checkpoint(str(tmp_path / "weights")) is True
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "weights", dtype=torch.float32)
    embedding = trainer.engine.model.state_dict()["tok_embeddings.weight"]
    rounded = saved.model.embed_tokens.weight.detach()
    torch.testing.assert_close(rounded, embedding, rtol=1e-2, atol=1e-3)
    assert found["loss"] == pytest.approx(found["loss/mean"])


def test_batches_come_under_the_name_of_either_trainer(trainer: PolicyTrainer) -> None:
    found = []
    for name in ("training_data", "train_data"):
        found.append(trainer.forward_backward(**{name: [flat((5, 7), 1)]}))
        trainer.engine.zero_grad()
        trainer._has_own_mean = False
    assert found[0] == found[1]
    for wrong in ({}, {"training_data": [flat((5,))], "train_data": [flat((5,))]}):
        with pytest.raises(TypeError, match="as training_data or as train_data"):
            trainer.forward_backward(**wrong)
    trainer.forward_backward([flat((5,))])  # what was refused counts as no call


def test_one_of_several_learning_rates_is_refused_only_where_it_is_asked_for(recipe: str) -> None:
    trainer = open_policy_trainer(
        recipe, ["optimizer.lr=1e-3", "optimizer.param_groups=[{match: [output.*], lr: 2e-3}]"]
    )
    trainer.forward_backward([flat((5, 7))])
    output = trainer.optim_step()
    low, high = output.learning_rates
    assert low > 0 and high == pytest.approx(2 * low) and output["lr"] in (low, high)
    assert output.metrics.keys() == {"trainer/grad_norm/mean", "trainer/policy_version"}
    with pytest.raises(KeyError, match="trainer/lr: the optimizer has several learning rates"):
        output.metrics["trainer/lr"]
    trainer.close()


def test_a_skipped_update_is_told_with_the_step_of_the_loop(
    trainer: PolicyTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    batch = flat((5, 7))
    batch.advantages[3] = float("nan")
    before = trainer.engine.model.state_dict()["tok_embeddings.weight"].clone()
    for step, text in ((None, "gradient norm is nan"), (3, "gradient norm of step 3 is nan")):
        if step is not None:
            trainer.sync_log_step(step, 1)
        trainer.forward_backward([batch])
        output = trainer.optim_step()
        assert f"{text}: update skipped" in caplog.text
        assert output["is_skipped"] == 1.0 and output.policy_version == 0
    assert torch.equal(trainer.engine.model.state_dict()["tok_embeddings.weight"], before)


@pytest.mark.parametrize("name", ["grpo", "cispo"])
def test_metrics_are_those_of_numpy_over_the_trained_tokens(recipe: str, name: str) -> None:
    low, high = 0.9, 1.1
    algorithm = f"{{name: {name}, clip_low: 0.1, clip_high: 0.1}}"
    trainer = open_policy_trainer(recipe, [f"rl.algorithm={algorithm}"])
    batch = flat((5, 7, 9), 3)
    model = trainer.engine.model
    mask = batch.loss_mask.numpy()
    advantages = batch.advantages.numpy().astype(np.float64)[mask]
    starts = [0, 5, 12, 21]
    rows = []
    with torch.no_grad():
        for start, end in pairwise(starts):
            logits = model(batch.token_ids[start:end].unsqueeze(0))[0]
            rows.append(logits.log_softmax(-1))
    logprobs = torch.cat(rows)
    own = logprobs.gather(-1, batch.labels.unsqueeze(-1))[:, 0]
    # some within the bounds, some outside on both sides, and one that differs by rounding only
    batch.generator_logprobs = own + torch.linspace(-0.3, 0.3, len(own))
    batch.generator_logprobs[mask.nonzero()[0][2]] = own[mask.nonzero()[0][2]] + 2e-7
    delta = (own - batch.generator_logprobs).numpy()[mask]
    ratio = np.exp(delta)
    clipped = ratio.clip(low, high)
    assert 0 < (clipped != ratio).mean() < 1 and np.abs(delta).min() < 1e-6
    entropy = -(logprobs.exp() * logprobs).sum(-1).numpy()[mask]
    loss = {
        "grpo": -np.minimum(ratio * advantages, clipped * advantages),
        "cispo": -clipped * advantages * own.numpy()[mask],
    }[name].mean()
    found = trainer.forward_backward([batch], int(mask.sum()))
    expected = {
        "advantage_mean": advantages.mean(),
        "advantage_std": advantages.std(),
        "logprob_diff_mean": np.abs(delta).mean(),
        "logprob_diff_max": np.abs(delta).max(),
        "logprob_max_delta": delta[np.abs(delta).argmax()],
        "ratio_mean": ratio.mean(),
        "ratio_clipped_frac": (clipped != ratio).mean(),
        "pg_loss": loss,
        "loss/mean": loss,
        "bit_wise/ratio_tokens_different/mean": (np.abs(delta) > 1e-6).mean(),
        "trainer/entropy/mean": entropy.mean(),
        "logprob_bitwise_identical": 0.0,
    }
    for metric, value in expected.items():
        assert found[metric] == pytest.approx(value, rel=1e-4, abs=1e-5), metric
    assert expected.keys() | {each for names in FURTHER_NAMES.values() for each in names} == (
        FIRST_NAMES | CURRENT_NAMES
    )
    for ours, names in FURTHER_NAMES.items():
        assert {found[each] for each in names} == {found[ours]}
    trainer.close()


@pytest.mark.parametrize("lengths", [(5, 7), (25, 20)])
def test_gradients_of_flat_documents_do_not_depend_on_how_they_are_packed(
    trainer: PolicyTrainer, lengths: tuple[int, int]
) -> None:
    """Together they may be longer than training.seq_len, 32 here."""
    whole = flat(lengths, 4)
    parts = [
        SimpleNamespace(**{name: value[own] for name, value in vars(whole).items()})
        for own in (slice(0, lengths[0]), slice(lengths[0], sum(lengths)))
    ]
    count = count_trained(whole)
    trainer.forward_backward([whole], count)
    expected = get_gradients(trainer)
    trainer.engine.zero_grad()
    for part in parts:
        trainer.forward_backward([part], count)
    for name, gradient in get_gradients(trainer).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("high", "low", "delta", "is_identical"),
    [(0.5, 0.2, 0.5, 0.0), (0.1, 0.3, -0.3, 0.0), (0.0, 0.0, 0.0, 1.0)],
)
def test_the_largest_difference_keeps_its_sign(
    high: float, low: float, delta: float, is_identical: float
) -> None:
    recorded = {"rl/logprob_delta_high": high, "rl/logprob_delta_low": low}
    found = build_policy_metrics(1.0, recorded)
    assert found["logprob_max_delta"] == delta
    assert found["logprob_bitwise_identical"] == is_identical
    assert found["loss/mean"] == 1.0 and FURTHER_NAMES["loss"] == ("loss/mean",)


def work(recipe: str, ranks: int) -> dict[str, float]:
    overrides = [f"parallelism.data_parallel_shard_degree={ranks}"]
    trainer = open_policy_trainer(recipe, overrides)
    # unequal parts: nine trained tokens and three
    data = [flat((5, 8), 1), flat((5,), 2)]
    given = data if ranks == 2 else [data]
    found = trainer.forward_backward(given, count_trained(*data))
    found["grad_norm"] = trainer.optim_step()["grad_norm"]
    trainer.close()
    return found


@pytest.mark.slow
def test_two_ranks_measure_what_one_measures(recipe: str, tmp_path: Path) -> None:
    (alone,) = on_ranks(1, work, tmp_path / "one", recipe, 1)
    for found in on_ranks(2, work, tmp_path / "two", recipe, 2):
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_a_correction_drops_tokens_of_a_call(recipe: str, trainer: PolicyTrainer) -> None:
    bounds = "rl.algorithm.correction={name: mask, low: 0.98, high: 1.02}"
    corrected = open_policy_trainer(recipe, [bounds])
    given = flat((9, 13))
    batch = to_token_batch(given)
    ratios = (trainer.engine.forward(batch)["logprobs"] - batch.extra["logprobs"]).exp()[0]
    is_kept = (ratios - 1).abs() <= 0.02
    assert 0 < (is_kept & given.loss_mask).sum() < given.loss_mask.sum()
    remaining = SimpleNamespace(**{**vars(given), "loss_mask": given.loss_mask & is_kept})
    wanted = trainer.forward_backward([remaining])
    for count in (None, count_trained(given)):
        found = corrected.forward_backward([given], count)
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        corrected.engine.zero_grad()
        corrected._has_own_mean = False
    corrected.close()
