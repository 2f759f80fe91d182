"""Corrections of policy losses, against formulas written here a second time in float64."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.rl.test_algorithms import (
    ALGORITHMS,
    VOCABULARY,
    batch_of,
    configured,
    logits_for,
    samples,
)
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.rl.algorithms.config import AlgorithmConfig
from titanrun.rl.algorithms.corrections import DropTokens
from titanrun.rl.algorithms.policy_losses import average_over_tokens
from titanrun.rl.rollout_packing import pack_rollouts
from titanrun.rl.rollout_types import TrainingSample

NORMS = ("token_mean", "sequence_mean", "sequence_sum", "constant")
LONGEST = 8
# bounds that some of the ratios of `samples` are within, of tokens and of completions
TOKEN_BOUNDS = {"name": "mask", "low": 0.4, "high": 1.5}
SEQUENCE_BOUNDS = {"name": "sequence_mask", "low": 0.3, "high": 0.5}


@dataclass
class TableEngine:
    """An engine whose model is the table of `logits_for`."""

    meshes: None = None

    def forward(self, batch: TokenBatch, *, temperature: float) -> dict[str, Tensor]:
        labels = batch.labels.masked_fill(~batch.label_mask(), 0)
        logprobs = torch.log_softmax(logits_for(batch).detach() / temperature, -1)
        found = logprobs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return {"logprobs": found.masked_fill(~batch.label_mask(), 0.0)}


def policy_logprobs() -> Any:
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
    return torch.log_softmax(table.double(), -1).numpy()


def log_ratios(sample: TrainingSample) -> list[float]:
    """log p(policy) - log p(generator) of each generated token, in float64."""
    table = policy_logprobs()
    return [
        table[sample.tokens[at - 1], sample.tokens[at]] - np.float32(sample.logprobs[at]).item()
        for at in range(2, len(sample.tokens))
    ]


def reduce_terms(answers: list[list[float]], norm: str) -> float:
    """The mean of the terms of some answers, none of which is empty."""
    sums = [sum(terms) for terms in answers]
    return {
        "token_mean": lambda: sum(sums) / sum(map(len, answers)),
        "sequence_mean": lambda: float(np.mean([np.mean(terms) for terms in answers])),
        "sequence_sum": lambda: float(np.mean(sums)),
        "constant": lambda: float(np.mean(sums)) / LONGEST,
    }[norm]()


def run_loss(
    config: AlgorithmConfig, batches: list[TokenBatch]
) -> tuple[float, dict[str, float], list[Tensor]]:
    """Mean loss of a step, its metrics, and the gradients of the logits."""
    if config.correction.drops_tokens:
        num_tokens = sum(int(batch.num_valid_tokens()) for batch in batches)
        drop = DropTokens(
            config.correction.load_builder()(config.correction),
            config.length_norm,
            TableEngine(),  # type: ignore[arg-type]
            1.0,
        )
        batches = drop(batches)
        # the run divides by what the packed batch counted
        assert sum(float(batch.num_valid_tokens()) for batch in batches) == pytest.approx(
            num_tokens
        )
    loss, metrics = (
        config.load_builder()(config, sampling_temperature=1.0),
        StepMetrics(torch.device("cpu")),
    )
    count = sum(float(batch.num_valid_tokens()) for batch in batches)
    total, gradients = 0.0, []
    with metrics.open():
        for batch in batches:
            logits = logits_for(batch)
            found = loss(logits, batch) / count
            found.backward()
            total += found.item()
            assert logits.grad is not None
            gradients.append(logits.grad)
    return total, average_over_tokens(metrics.flush(None), num_tokens=round(count)), gradients


@dataclass
class Token:
    """What the formulas of a token's loss read, in float64."""

    policy: float
    behind: float
    reference: float
    whole: float
    advantage: float

    @property
    def ratio(self) -> float:
        return math.exp(self.policy - self.behind)


def tokens_of(given: list[TrainingSample], batch: TokenBatch) -> list[list[Token]]:
    table = policy_logprobs()
    references = iter(batch.extra["reference"].double()[batch.label_mask()].tolist())
    return [
        [
            Token(
                policy=table[sample.tokens[at - 1], sample.tokens[at]],
                behind=np.float32(sample.logprobs[at]).item(),
                reference=next(references),
                whole=math.exp(float(np.mean(log_ratios(sample)))),
                advantage=sample.advantage,
            )
            for at in range(2, len(sample.tokens))
        ]
        for sample in given
    ]


def describe_token_loss(name: str, token: Token, config: Any) -> tuple[float | None, float]:
    """Return the ratio in a token's loss, None for none, and the loss."""
    advantage = token.advantage
    if name in ("grpo", "dapo", "dr_grpo", "gspo"):
        ratio = token.whole if name == "gspo" else token.ratio
        clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
        return ratio, -min(ratio * advantage, clipped * advantage)
    if name == "cispo":
        weight = min(token.ratio, 1 + config.clip_high)
        return weight, -weight * advantage * token.policy
    if name == "dppo":
        risen = math.exp(token.policy) - math.exp(token.behind)
        is_too_far = risen > config.max_rise if advantage > 0 else risen < -config.max_fall
        return token.ratio, 0.0 if is_too_far else -token.ratio * advantage
    if name == "ref_kl":
        return token.ratio, -token.ratio * (token.reference - token.behind)
    return None, -advantage * token.policy


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_token_weighs_more_than_the_limit(name: str) -> None:
    # the ratios of completions here are all below 1
    limit = 0.5 if name == "gspo" else 1.1
    config = configured(name, correction={"name": "truncated", "max": limit})
    given = samples(config)
    batch = batch_of(config, given)
    answers: list[list[float]] = []
    limited, ratios = [], []
    for tokens in tokens_of(given, batch):
        answers.append([])
        for token in tokens:
            ratio, loss = describe_token_loss(name, token, config)
            used = token.ratio if ratio is None else ratio
            answers[-1].append(loss * min(used, limit) / (1.0 if ratio is None else ratio))
            limited.append(used > limit)
            ratios.append(token.ratio)
    assert 0 < sum(limited) < len(limited)
    loss, metrics, _ = run_loss(config, [batch])
    assert loss == pytest.approx(reduce_terms(answers, config.length_norm), rel=2e-5)
    assert loss != pytest.approx(run_loss(configured(name), [batch])[0], rel=1e-3)
    assert metrics["rl/correction/clipped_share"] == pytest.approx(np.mean(limited))
    assert metrics["rl/correction/mean"] == pytest.approx(np.mean(ratios), rel=1e-5)


def test_the_factor_has_no_gradient() -> None:
    # rloo with a factor f has f times the gradient of rloo, token by token
    plain, limited = (
        configured("rloo", correction=correction)
        for correction in ({"name": "none"}, {"name": "truncated", "max": 1.1})
    )
    given = samples(plain)
    batch = batch_of(plain, given)
    gradients = [run_loss(config, [batch])[2][0] for config in (plain, limited)]
    factors = [min(math.exp(each), 1.1) for sample in given for each in log_ratios(sample)]
    valid = batch.label_mask()
    wanted = gradients[0][valid] * torch.tensor(factors).unsqueeze(-1)
    torch.testing.assert_close(gradients[1][valid], wanted, rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("correction", [TOKEN_BOUNDS, SEQUENCE_BOUNDS], ids=["tokens", "answers"])
def test_dropped_tokens_count_neither_above_nor_below_the_line(
    norm: str, correction: dict[str, Any]
) -> None:
    config = configured("rloo", length_norm=norm, correction=correction)
    given, table = samples(config), policy_logprobs()
    answers, num_tokens = [], 0
    for sample in given:
        found = log_ratios(sample)
        num_tokens += len(found)
        whole = float(np.mean(found))
        terms = [
            -sample.advantage * table[sample.tokens[at], sample.tokens[at + 1]]
            for at, log_ratio in enumerate(found, 1)
            if correction["low"]
            <= math.exp(log_ratio if correction is TOKEN_BOUNDS else whole)
            <= correction["high"]
        ]
        answers += [terms] if terms else []
    num_kept = sum(map(len, answers))
    assert 0 < num_kept < num_tokens
    wanted = reduce_terms(answers, norm)
    whole_batch = batch_of(config, given)
    apart = pack_rollouts(
        given,
        seq_len=9,
        batch_multiple=2,
        should_pack=False,
        length_norm=norm,
        max_completion_tokens=LONGEST,
    ).batch.split(2)
    assert len(apart) == 2
    for batches in ([whole_batch], apart):
        loss, metrics, _ = run_loss(config, batches)
        assert loss == pytest.approx(wanted, rel=2e-5)
        dropped = 1 - num_kept / num_tokens
        assert metrics["rl/correction/clipped_share"] == pytest.approx(dropped)
        assert metrics["rl/pg_loss"] == pytest.approx(loss, rel=1e-5)
        # what is logged of policy and generator is of all tokens: nothing is hidden
        all_ratios = [math.exp(each) for sample in given for each in log_ratios(sample)]
        assert metrics["rl/correction/mean"] == pytest.approx(np.mean(all_ratios), rel=1e-5)


def test_a_step_of_which_nothing_is_kept_has_no_gradient() -> None:
    config = configured(
        "grpo", length_norm="sequence_mean", correction={"name": "mask", "low": 0.0, "high": 1e-6}
    )
    batch = batch_of(config, samples(config))
    dropped = DropTokens(
        config.correction.load_builder()(config.correction),
        config.length_norm,
        TableEngine(),  # type: ignore[arg-type]
        1.0,
    )([batch])[0]
    logits = logits_for(dropped)
    config.load_builder()(config, sampling_temperature=1.0)(logits, dropped).backward()
    assert logits.grad is not None and not logits.grad.any()
    assert dropped.num_valid_tokens() == 0


def test_ratios_are_of_the_temperature_of_the_generator() -> None:
    config = configured("rloo", correction={"name": "mask", "low": 0.999, "high": 1.001})
    batch = batch_of(config, samples(config))
    own = TableEngine().forward(batch, temperature=0.5)["logprobs"]
    batch = replace(batch, extra={**batch.extra, "logprobs": own})
    drop = partial(
        DropTokens,
        config.correction.load_builder()(config.correction),
        config.length_norm,
        TableEngine(),  # type: ignore[arg-type]
    )
    num_tokens = int(batch.num_valid_tokens())
    kept = [(drop(at)([batch])[0].weights != 0).sum().item() for at in (0.5, 1.0)]  # type: ignore[union-attr]
    assert kept[0] == num_tokens > kept[1]


def test_without_a_correction_the_ratio_is_logged_and_nothing_changes() -> None:
    config = configured("grpo")
    given = samples(config)
    _, metrics, _ = run_loss(config, [batch_of(config, given)])
    ratios = [math.exp(each) for sample in given for each in log_ratios(sample)]
    assert metrics["rl/correction/mean"] == pytest.approx(np.mean(ratios), rel=1e-5)
    assert metrics["rl/correction/clipped_share"] == 0


def test_bounds_between_which_nothing_is_are_a_problem() -> None:
    with pytest.raises(ValueError, match="no ratio is between low 2 and high 1"):
        configured("grpo", correction={"name": "mask", "low": 2.0, "high": 1.0})
