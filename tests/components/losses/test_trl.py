"""Losses of preferences and of distillation against those that trl 1.16 recorded, with all
gradients.

tools/record_trl.py made the record on a llama of transformers in fp32, with two layers and random
weights.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import LossConfig
from titanrun.components.losses.distillation import DistillationLoss
from titanrun.components.losses.distillation_config import DistillationConfig
from titanrun.components.losses.kto import DESIRABLE, KL_ESTIMATE, KTOLoss
from titanrun.components.losses.orpo import log1mexp
from titanrun.components.losses.pair_logprobs import NLL_SCALE, REFERENCE_LOGPROBS
from titanrun.components.losses.preference_config import KtoConfig, OrpoConfig, SimpoConfig
from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.lr_schedulers.spec.warmup_stable_decay import WarmupStableDecaySchedule
from titanrun.config.registry import load_choice
from titanrun.distributed.precision import Precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.llama3.huggingface import from_huggingface, to_huggingface
from titanrun.models.llama3.model import Llama3
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.recipe.builtins import register_builtins
from titanrun.training.engine import Engine
from titanrun.training.preference_inputs import (
    FrozenReference,
    PreferenceInputs,
    add_value,
    add_values,
    count_sequences,
)
from titanrun.training.runners.distillation_forward_backward import DistillationForwardBackward
from tools import record_trl as trl

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
SEQ_LEN = 24
MODEL: dict[str, Any] = {
    "flavor": None,
    "vocab_size": trl.SIZES["vocab_size"],
    "dim": trl.SIZES["hidden_size"],
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": 1,
    "head_dim": 4,
    "max_seq_len": 32,
    "norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope": {"theta": 10000.0, "scaling": None},
    "attention": {"mask": "block_causal", "documents": "positions"},
    "feed_forward": {"hidden_dim": 16, "multiple_of": 8, "ffn_dim_multiplier": None},
}


# the names of the trained model and of the reference in the record
ROLES = {"reward": ("reward", "reference"), "kto": ("reference", "model")}


@cache
def read_record() -> dict[str, Tensor]:
    return load_file(trl.PATH)


def select(prefix: str) -> dict[str, Tensor]:
    found = {
        name.removeprefix(f"{prefix}|"): value
        for name, value in read_record().items()
        if name.startswith(f"{prefix}|")
    }
    found.pop("loss", None)
    return found


def build_model(prefix: str) -> tuple[Llama3, Llama3Config]:
    """The model of the record in titanrun's own layout of weights."""
    head = "scalar" if prefix == "reward" else "lm"
    written = Llama3Config.model_validate({**MODEL, "head": head})
    config = Llama3Config.model_validate(resolve_model_sizes(written, seq_len=SEQ_LEN))
    model = Llama3(config, seq_len=SEQ_LEN)
    model.load_state_dict(from_huggingface(config, select(prefix)))
    return model, config


def build_engine(model: nn.Module, loss: Any = None) -> Engine:
    schedule = WarmupStableDecayConfig(total_steps=4, warmup_steps=0)
    return Engine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        WarmupStableDecaySchedule(schedule),
        loss,
        device=CPU,
        working_weights=WorkingWeights(model, Precision(torch.float32, torch.float32)),
        document_id_fn=document_ids_from_positions,
    )


def build_row(documents: list[tuple[list[int], list[int]]], value: float | None) -> np.ndarray:
    """A sample as datasets of replies give it: ids, labels in the loss, positions, value."""
    row = np.zeros((3 if value is None else 4, SEQ_LEN + 1), dtype=np.int64)
    end = 0
    for prompt, reply in documents:
        start, end = end, end + len(prompt) + len(reply)
        row[0, start:end] = prompt + reply
        row[1, end - len(reply) : end] = 1
        row[2, start:end] = np.arange(end - start)
    row[2, end:] = np.arange(SEQ_LEN + 1 - end)
    if value is not None:
        row[3] = np.float32(value).view(np.uint32)
    return row


def build_batch(loss: LossConfig) -> TokenBatch:
    rows = [
        build_row([(prompt, chosen)], float(label))
        if isinstance(loss, KtoConfig)
        else build_row([(prompt, chosen), (prompt, rejected)], None)
        for prompt, chosen, rejected, label in zip(
            trl.PROMPTS, trl.CHOSEN, trl.REJECTED, trl.LABELS, strict=True
        )
    ]
    return TokenBatch.from_sequences(np.stack(rows))


def find_distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The distance of gradients, relative to their norm."""
    one, other = (torch.cat([value.flatten() for value in values]) for values in (found, expected))
    return float((one - other).norm() / other.norm())


def iter_cases(*names: str) -> list[str]:
    cases = dict.fromkeys(name.split("|")[0] for name in read_record() if name.startswith("{"))
    return [case for case in cases if json.loads(case)["name"] in names]


@pytest.mark.parametrize("case", iter_cases("dpo", "ipo", "cpo", "simpo", "orpo", "kto", "reward"))
@pytest.mark.parametrize("rows_per_pass", [4, 1])
def test_losses_and_gradients_are_those_of_trl(case: str, rows_per_pass: int) -> None:
    register_builtins()
    fields = json.loads(case)
    config = load_choice(LossConfig, fields["name"]).model_validate(fields)
    policy, other = ROLES.get(fields["name"], ("model", "reference"))
    model, model_config = build_model(policy)
    reference, _ = build_model(other)
    engine = build_engine(model, config.load_builder()(config))
    prepare = PreferenceInputs(
        config, engine, FrozenReference(build_engine(reference), should_disable_adapters=False)
    )

    output = engine.forward_backward(prepare(build_batch(config).split(rows_per_pass)))

    recorded = read_record()[f"{case}|loss"].item()
    assert output.loss.item() == pytest.approx(recorded, rel=1e-6)
    gradients = {name: value.grad for name, value in model.named_parameters()}
    found, expected = to_huggingface(model_config, gradients), select(case)
    assert found.keys() == expected.keys()
    # both sides round to fp32; where a reply is almost certain, beta magnifies that, and scores are
    # sums without the softmax's bound
    limit = 2e-6 if policy == "model" else 4e-6
    assert find_distance(list(found.values()), [expected[name] for name in found]) < limit
    assert max(find_distance([found[name]], [expected[name]]) for name in found) < 1e-5


@pytest.mark.parametrize("case", iter_cases("distillation"))
@pytest.mark.parametrize("rows_per_pass", [4, 1])
def test_distillation_and_its_gradients_are_those_of_trl(case: str, rows_per_pass: int) -> None:
    config = DistillationConfig.model_validate({**json.loads(case), "teacher": "unused"})
    model, model_config = build_model("model")
    engine, teacher = build_engine(model, DistillationLoss(config)), build_model("reference")[0]
    engine.runner = DistillationForwardBackward(engine.runner, build_engine(teacher))
    rows = [build_row([pair], None) for pair in zip(trl.PROMPTS, trl.CHOSEN, strict=True)]

    output = engine.forward_backward(TokenBatch.from_sequences(np.stack(rows)).split(rows_per_pass))

    recorded = read_record()[f"{case}|loss"].item()
    assert output.loss.item() == pytest.approx(recorded, rel=1e-6)
    assert all(value.grad is None for value in teacher.parameters())
    gradients = {name: value.grad for name, value in model.named_parameters()}
    found, expected = to_huggingface(model_config, gradients), select(case)
    assert found.keys() == expected.keys()
    assert find_distance(list(found.values()), [expected[name] for name in found]) < 2e-6
    assert max(find_distance([found[name]], [expected[name]]) for name in found) < 1e-5


WORKED = {
    "dpo": 0.598139,
    "ipo": 20.702501,
    "cpo": 0.554355,
}


@pytest.mark.parametrize(("name", "expected"), WORKED.items())
def test_losses_have_the_values_worked_by_hand(name: str, expected: float) -> None:
    """Log-probabilities -12 and -15, -13 and -14 under the reference, of 4 and 5 tokens."""
    register_builtins()
    fields = {"name": name} | ({"nll_weight": 0.0} if name == "cpo" else {})
    config = load_choice(LossConfig, name).model_validate(fields)
    assert compute_loss_of(config, (-12.0, -15.0), (-13.0, -14.0), (4, 5)) == pytest.approx(
        expected, abs=1e-6
    )


def test_simpo_and_orpo_have_the_values_worked_by_hand() -> None:
    simpo = SimpoConfig(beta=2.0, gamma=0.5)
    assert compute_loss_of(simpo, (-12.0, -15.0), (0.0, 0.0), (4, 5)) == pytest.approx(
        0.974077, abs=1e-6
    )
    # means -2 and -3; the cross entropy of the preferred reply is 2, also behind a longer prompt
    orpo = OrpoConfig(beta=0.1, nll_on="replies")
    for prompt in (1, 3):
        found = compute_loss_of(orpo, (-8.0, -15.0), (0.0, 0.0), (4, 5), prompt=prompt)
        assert found == pytest.approx(2 + 0.028875, abs=1e-5)


@pytest.mark.parametrize(("is_desirable", "expected"), [(True, 0.487503), (False, 0.462570)])
def test_kto_has_the_values_worked_by_hand(is_desirable: bool, expected: float) -> None:
    policy, before = (-12.0, -13.0) if is_desirable else (-15.0, -14.0)
    batch = add_value(
        build_certain_batch((policy, policy), (before, before), (4, 4)), KL_ESTIMATE, 0.5
    )
    batch = add_values(batch, {DESIRABLE: torch.tensor([[is_desirable]])})
    batch.loss_mask[batch.document_ids == 1] = False
    assert KTOLoss(KtoConfig())(build_logits(batch, (policy, policy), (4, 4)), batch).item() == (
        pytest.approx(expected, abs=1e-6)
    )


def compute_loss_of(
    config: LossConfig,
    policy: tuple[float, float],
    reference: tuple[float, float],
    tokens: tuple[int, int],
    prompt: int = 1,
) -> float:
    """The loss of one pair with these sums of log-probabilities."""
    batch = build_certain_batch(policy, reference, tokens, prompt)
    loss: float = config.load_builder()(config)(build_logits(batch, policy, tokens), batch).item()
    return loss


def build_certain_batch(
    policy: tuple[float, float],
    reference: tuple[float, float],
    tokens: tuple[int, int],
    prompt: int = 1,
) -> TokenBatch:
    """A pair of replies of so many tokens each, all equally likely under the reference."""
    rows = [build_row([([1] * prompt, [1] * tokens[0]), ([1] * prompt, [1] * tokens[1])], None)]
    batch = count_sequences(document_ids_from_positions(TokenBatch.from_sequences(np.stack(rows))))
    spread = [value / count for value, count in zip(reference, tokens, strict=True)]
    values = torch.tensor([*spread, 0.0])[batch.document_ids.clamp(max=2)]
    # one pair, whose preferred reply has tokens[0] tokens
    return add_value(add_values(batch, {REFERENCE_LOGPROBS: values}), NLL_SCALE, 1 / tokens[0])


def build_logits(batch: TokenBatch, policy: tuple[float, float], tokens: tuple[int, int]) -> Tensor:
    """Logits of two ids, under which id 1 has the same share of the log-probability each time."""
    spread = [value / count for value, count in zip(policy, tokens, strict=True)]
    wanted = torch.tensor([*spread, -1.0], dtype=torch.float64)[batch.document_ids.clamp(max=2)]
    return torch.stack([(-wanted.expm1()).log(), wanted], dim=-1).float()


def test_certain_replies_have_finite_odds() -> None:
    """A reply of probability 1 to fp32, where 1 - p is lost without expm1."""
    values = torch.tensor([-1e-9, -1e-3, -0.5, -0.7, -30.0], requires_grad=True)
    found = log1mexp(values)
    found.sum().backward()
    exact = values.detach().double()
    torch.testing.assert_close(found.double(), (-exact.expm1()).log(), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(
        values.grad.double(), exact.exp() / exact.expm1(), rtol=1e-6, atol=1e-12
    )


@pytest.mark.oracles
def test_the_record_is_what_trl_computes() -> None:
    made = subprocess.run(
        [sys.executable, "tools/record_trl.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
