"""The losses of policies, against formulas written here a second time in float64."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.config import registry
from titanrun.rl.algorithms.advantages import build_advantage_fn
from titanrun.rl.algorithms.config import AlgorithmConfig
from titanrun.rl.algorithms.policy_losses import KL_ESTIMATORS
from titanrun.rl.rollout_packing import build_empty_batch, pack_rollouts
from titanrun.rl.rollout_types import TrainingSample

VOCABULARY = 7
ALGORITHMS = registry.load_choices(AlgorithmConfig)
# a value of each option that is no algorithm's default; what the option needs to have an effect
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "advantage": ("group_std", {"advantage": "group_mean"}),
    "length_norm": ("sequence_sum", {"length_norm": "token_mean"}),
    "max_log_ratio": (0.01, {"clip_low": 1.0, "clip_high": 5.0, "kl": {"coef": 0.1}}),
    "entropy_coef": (0.5, {}),
    "kl.coef": (0.5, {}),
    "kl.estimator": ("k1", {"kl": {"coef": 0.5}}),
    "clip_low": (0.01, {"clip_low": 0.5}),
    "clip_high": (0.01, {"clip_high": 5.0}),
    "max_rise": (0.01, {"max_rise": 1.0}),
    "max_fall": (0.01, {"max_fall": 1.0}),
}


def configured(name: str, **options: Any) -> AlgorithmConfig:
    known = ALGORITHMS[name].model_fields
    return ALGORITHMS[name].model_validate(
        {"name": name, **{key: value for key, value in options.items() if key in known}}
    )


def samples(config: AlgorithmConfig, *, seed: int = 0) -> list[TrainingSample]:
    """Four answers of 2 to 5 tokens to prompts of 2, with the advantages that the algorithm gives
    them."""
    random = np.random.default_rng(seed)
    advantages = build_advantage_fn(getattr(config, "advantage", "group_mean"))(
        [0.0, 1.0, 0.25, 0.5]
    )
    made = []
    for index, advantage in enumerate(advantages):
        count = 2 + index
        tokens = random.integers(VOCABULARY, size=2 + count).tolist()
        logprobs = [0.0, 0.0, *(-random.uniform(0.5, 3.0, size=count)).tolist()]
        made.append(TrainingSample(tokens, [False, False, *[True] * count], logprobs, advantage))
    return made


def batch_of(
    config: AlgorithmConfig, given: list[TrainingSample], *, row_length: int = 40
) -> TokenBatch:
    packed = pack_rollouts(
        given,
        seq_len=row_length,
        batch_multiple=1,
        should_pack=True,
        length_norm=config.length_norm,
        max_completion_tokens=8,
    )
    torch.manual_seed(1)
    packed.batch.extra["reference"] = packed.batch.extra["logprobs"] - 0.3 * torch.rand_like(
        packed.batch.extra["logprobs"]
    )
    return packed.batch


def logits_for(batch: TokenBatch) -> Tensor:
    """The same logits for the same token after the same token, wherever they stand."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
    return table[batch.tokens].requires_grad_(True)


def loss_of(config: AlgorithmConfig, given: list[TrainingSample] | None = None) -> float:
    batch = batch_of(config, samples(config) if given is None else given)
    loss = config.load_builder()(config, sampling_temperature=1.0)
    return (loss(logits_for(batch), batch) / batch.num_valid_tokens()).item()


def by_hand(name: str, config: Any) -> float:
    """The mean loss by the papers' formulas, token by token in float64; for options at their
    defaults."""
    given = samples(config)
    batch = batch_of(config, given)
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3)).double()
    logprob = torch.log_softmax(table, -1).numpy()
    references = iter((batch.extra["reference"].double()[batch.label_mask()]).tolist())
    answers = []
    for sample in given:
        terms, ratios = [], []
        for position in range(2, len(sample.tokens)):
            policy = logprob[sample.tokens[position - 1], sample.tokens[position]]
            behind = np.float32(sample.logprobs[position]).item()
            ratios.append(
                (policy, behind, math.exp(max(-10, min(10, policy - behind))), next(references))
            )
        whole = math.exp(sum(policy - behind for policy, behind, _, _ in ratios) / len(ratios))
        advantage = sample.advantage
        for policy, behind, ratio, reference in ratios:
            if name in ("grpo", "dapo", "dr_grpo", "gspo"):
                used = whole if name == "gspo" else ratio
                clipped = min(max(used, 1 - config.clip_low), 1 + config.clip_high)
                terms.append(-min(used * advantage, clipped * advantage))
            elif name == "dppo":
                risen = math.exp(policy) - math.exp(behind)
                too_far = risen > config.max_rise if advantage > 0 else risen < -config.max_fall
                terms.append(0.0 if too_far else -ratio * advantage)
            elif name == "cispo":
                terms.append(
                    -min(max(ratio, 1 - config.clip_low), 1 + config.clip_high) * advantage * policy
                )
            elif name == "ref_kl":
                terms.append(-ratio * (reference - behind))
            else:
                terms.append(-advantage * policy)
        answers.append(terms)
    sums = [sum(terms) for terms in answers]
    return {
        "token_mean": sum(sums) / sum(map(len, answers)),
        "sequence_mean": float(np.mean([np.mean(terms) for terms in answers])),
        "sequence_sum": float(np.mean(sums)),
        "constant": float(np.mean(sums)) / 8,
    }[config.length_norm]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_loss_is_that_of_its_paper(name: str) -> None:
    config = configured(name)
    assert loss_of(config) == pytest.approx(by_hand(name, config), rel=2e-5)


def test_three_tokens_computed_on_paper() -> None:
    # p = 0.5 everywhere; the generator's 0.5, 0.25, 1.0: ratios 1, 2, 0.5; advantage 1, clip to
    # 1.2: -(1 + 1.2 + 0.5) / 3
    config = configured("grpo")
    sample = TrainingSample(
        [0, 0, 1, 1], [False, True, True, True], [0.0, math.log(0.5), math.log(0.25), 0.0], 1.0
    )
    batch = batch_of(config, [sample])
    logits = torch.full((*batch.tokens.shape, 2), 0.0)
    assert config.load_builder()(config, sampling_temperature=1.0)(
        logits, batch
    ).item() == pytest.approx(-2.7, rel=1e-6)
    sample = replace(
        sample, advantage=-1.0
    )  # the pessimistic side: ratio 2 is not clipped, 0.5 is, to 0.8
    batch = batch_of(config, [sample])
    assert config.load_builder()(config, sampling_temperature=1.0)(
        logits, batch
    ).item() == pytest.approx(1 + 2 + 0.8, rel=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "cispo", "dppo", "ref_kl"])
def test_on_policy_the_gradient_is_the_policy_gradient(name: str) -> None:
    config = configured(name, length_norm="token_mean")
    gradients = []
    for algorithm in (config, configured("reinforce")):
        batch = batch_of(config, samples(config))
        logits = logits_for(batch)
        labels = batch.labels.masked_fill(~batch.label_mask(), 0)
        own = torch.log_softmax(logits.detach(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        batch.extra["logprobs"] = own
        if name == "ref_kl":
            batch.extra["reference"] = own + batch.extra["advantages"]
        algorithm.load_builder()(algorithm, sampling_temperature=1.0)(logits, batch).backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)
    assert gradients[1].abs().sum() > 0


def test_answers_that_are_worse_than_the_rest_get_gradients() -> None:
    config = configured("grpo")
    sample = TrainingSample([0, 1, 2], [False, True, True], [0.0, -2.5, -2.5], -1.0)
    batch = batch_of(config, [sample])
    logits = logits_for(batch)
    config.load_builder()(config, sampling_temperature=1.0)(logits, batch).backward()
    assert logits.grad is not None and logits.grad[0, :2].abs().min() > 0


def test_a_token_whose_logprob_is_no_number_counts_nowhere() -> None:
    config = configured("grpo")
    given = samples(config)
    spoiled = replace(given[3], logprobs=[*given[3].logprobs[:-1], -math.inf])
    shorter = replace(given[3], mask=[*given[3].mask[:-1], False])
    assert loss_of(config, [*given[:3], spoiled]) == loss_of(config, [*given[:3], shorter])
    assert (
        batch_of(config, [*given[:3], spoiled]).num_valid_tokens()
        == batch_of(config, given).num_valid_tokens() - 1
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_that_are_all_filling_cost_nothing(name: str) -> None:
    config = configured(name)
    empty = build_empty_batch(2, 8)
    empty.extra["reference"] = torch.zeros(2, 8)
    assert (
        config.load_builder()(config, sampling_temperature=1.0)(
            torch.zeros(2, 8, 5, requires_grad=True), empty
        ).item()
        == 0
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_loss_does_not_depend_on_how_answers_are_dealt_to_rows(name: str) -> None:
    config = configured(name, kl={"coef": 0.1}, entropy_coef=0.01)
    loss = config.load_builder()(config, sampling_temperature=1.0)
    whole = batch_of(config, samples(config))
    apart = pack_rollouts(
        samples(config),
        seq_len=9,
        batch_multiple=2,
        should_pack=False,
        length_norm=config.length_norm,
        max_completion_tokens=8,
    ).batch
    apart.extra["reference"] = torch.zeros_like(apart.extra["logprobs"])
    apart.extra["reference"][apart.label_mask()] = whole.extra["reference"][whole.label_mask()]
    parts = apart.split(2)
    assert len(parts) == 2
    sums = [loss(logits_for(part), part).item() for part in parts]
    assert sum(sums) == pytest.approx(loss(logits_for(whole), whole).item(), rel=1e-5)


def test_every_option_of_an_algorithm_counts() -> None:
    for name, choice in ALGORITHMS.items():
        fields = {*choice.model_fields, "kl.coef", "kl.estimator"} - {"name", "kl"}
        # it is no part of the loss: the next test; test_corrections.py
        fields -= {"entropy_metric", "correction"}
        assert fields <= set(OTHERS)
        for field in sorted(fields):
            value, base = OTHERS[field]
            section, _, inner = field.partition(".")
            changed = {**base, section: {**base.get(section, {}), inner: value} if inner else value}
            one, other = configured(name, **base), configured(name, **changed)
            # not every draw has a ratio beyond each bound
            differ = [
                loss_of(one, samples(one, seed=seed)) != loss_of(other, samples(other, seed=seed))
                for seed in range(5)
            ]
            assert any(differ), f"{name}.{field}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_entropy_is_recorded_where_the_algorithm_says_so(name: str) -> None:
    found = {}
    for is_logged in (False, True):
        config = configured(name, entropy_metric=is_logged)
        batch = batch_of(config, samples(config))
        logits, metrics = logits_for(batch), StepMetrics(torch.device("cpu"))
        with metrics.open():
            config.load_builder()(config, sampling_temperature=0.5)(logits, batch).backward()
        found[is_logged] = (logits.grad, metrics.flush(None))
    assert "rl/entropy" not in found[False][1]
    assert torch.equal(found[False][0], found[True][0])
    shown = (logits.detach().double() / 0.5)[batch.label_mask()]
    wanted = torch.distributions.Categorical(logits=shown).entropy().sum().item()
    assert found[True][1]["rl/entropy"] == pytest.approx(wanted, rel=1e-5)


def test_advantages_are_what_their_names_say() -> None:
    rewards = np.array([0.0, 1.0, 0.25, 0.5])
    expected = {
        "group_mean": rewards - rewards.mean(),
        "group_std": (rewards - rewards.mean()) / (rewards.std() + 1e-6),
        "leave_one_out": [
            reward - np.delete(rewards, index).mean() for index, reward in enumerate(rewards)
        ],
        "group_ratio": (rewards - rewards.mean()) / rewards.mean(),
        "group_rank": [-1.0, 1.0, -1 / 3, 1 / 3],
        "running_mean": rewards,
    }
    for name, values in expected.items():
        assert build_advantage_fn(name)(rewards.tolist()) == pytest.approx(list(values))
    running = build_advantage_fn("running_mean")
    running([1.0, 0.0])
    assert running([1.0]) == [0.5]
    assert build_advantage_fn("group_ratio")([0.0, 0.0]) == [0.0, 0.0]
    assert build_advantage_fn("group_rank")([5.0, 1.0, 5.0]) == [0.5, -1.0, 0.5]


def test_estimates_of_the_divergence_against_the_exact_sum() -> None:
    torch.manual_seed(0)
    policy, reference = (torch.randn(8, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    difference = policy - reference
    exact = (policy.exp() * difference).sum()
    expectation = {
        name: (policy.exp() * estimate(difference)).sum()
        for name, estimate in KL_ESTIMATORS.items()
    }
    torch.testing.assert_close(expectation["k1"], exact)
    torch.testing.assert_close(expectation["k3"], exact)
    torch.testing.assert_close(expectation["k2"], (policy.exp() * difference**2).sum() / 2)
    torch.testing.assert_close(expectation["abs"], (policy.exp() * difference.abs()).sum())
    assert (KL_ESTIMATORS["k3"](difference) >= 0).all()
