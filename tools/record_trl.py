"""Records losses and gradients of trl on a small random model, for tests that run without trl.

Run it with trl installed (the extra `oracles`): `python tools/record_trl.py`. `--check` compares
the committed file with fresh results. The file holds the weights of a llama of transformers and of
a reference, the token ids, and for each case the loss and the gradients of all weights.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

PATH = Path(__file__).resolve().parents[1] / "tests" / "numerics" / "trl.safetensors"
SIZES = {
    "vocab_size": 24,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "initializer_range": 0.4,
    "attn_implementation": "eager",
    "pad_token_id": 0,
}
PROMPTS = [[3, 8, 5], [4, 4, 9, 20], [17, 6], [3, 11, 12, 5]]
CHOSEN = [[7, 21, 1], [10, 1], [13, 14, 15, 16, 1], [22, 1]]
REJECTED = [[9, 1], [18, 19, 7, 1], [2, 1], [23, 2, 6, 1]]
LABELS = [True, False, True, True]
TOLERANCE = 1e-6

Cases = dict[str, tuple[Tensor, torch.nn.Module]]


def build_model(seed: int, kind: type = LlamaForCausalLM, **sizes: int) -> Any:
    """Build a model with weights from the seed.

    It draws and computes in fp64, so that another kind of CPU records the same file; the weights
    have values of fp32, which the file holds.
    """
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    try:
        return kind(LlamaConfig(**SIZES, **sizes)).float().double()
    finally:
        torch.set_default_dtype(torch.float32)


def pad(rows: list[list[int]], value: int) -> Tensor:
    """Pad rows on the right to the length of the longest one."""
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def build_rows(prompts: list[list[int]], replies: list[list[int]]) -> dict[str, Tensor]:
    """Return ids, attention mask, labels and completion mask of conversations."""
    pairs = list(zip(prompts, replies, strict=True))
    whole = [prompt + reply for prompt, reply in pairs]
    return {
        "input_ids": pad(whole, 0),
        "attention_mask": pad([[1] * len(row) for row in whole], 0),
        "labels": pad([[-100] * len(prompt) + reply for prompt, reply in pairs], -100),
        "completion_mask": pad(
            [[0] * len(prompt) + [1] * len(reply) for prompt, reply in pairs], 0
        ),
    }


def build_trainer(trainer: type, **values: Any) -> Any:
    """Build a trainer that only computes losses, without data, tokenizer and optimizer."""
    made = object.__new__(trainer)
    common = {
        "accelerator": Accelerator(cpu=True),
        "aux_loss_enabled": False,
        "is_encoder_decoder": False,
        "padding_value": 0,
        "pad_token_id": 0,
        "label_smoothing": 0.0,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
        "precompute_ref_logps": False,
        "args": SimpleNamespace(
            gradient_checkpointing_kwargs=None, device="cpu", center_rewards_coefficient=None
        ),
    }
    for name, value in (common | values).items():
        setattr(made, name, value)
    return made


def run_concatenated(trainer: type, **values: Any) -> tuple[Tensor, torch.nn.Module]:
    """Compute the loss of a trainer that takes both replies by name (CPO, ORPO)."""
    model = build_model(0)
    chosen, rejected = build_rows(PROMPTS, CHOSEN), build_rows(PROMPTS, REJECTED)
    batch = {
        f"{name}_{key}": rows[key]
        for name, rows in (("chosen", chosen), ("rejected", rejected))
        for key in ("input_ids", "attention_mask", "labels")
    }
    loss, _ = build_trainer(trainer, **values).get_batch_loss_metrics(model, batch)
    return loss, model


def build_fused_model(seed: int) -> LlamaForCausalLM:
    """Build a model with the head that trl's newer trainers call."""
    from trl.trainer.utils import add_fused_lm_head

    model = build_model(seed)
    outputs = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
    add_fused_lm_head(model, outputs=outputs)
    return model


def run_dpo(*loss_types: str, **values: Any) -> tuple[Tensor, torch.nn.Module]:
    """Compute a loss of the DPO trainer; its rows are all preferred ones, then all others."""
    from trl import DPOTrainer

    model = build_fused_model(0)
    trainer = build_trainer(
        DPOTrainer,
        model=model,
        ref_model=build_fused_model(1),
        loss_types=list(loss_types),
        loss_weights=[1.0] * len(loss_types),
        f_divergence_type="reverse_kl",
        ld_alpha=None,
        use_weighting=False,
        **values,
    )
    rows = build_rows(PROMPTS * 2, CHOSEN + REJECTED)
    rows.pop("labels")
    return trainer._compute_loss(model, rows, False), model


def run_kto(loss_type: str, **values: Any) -> tuple[Tensor, torch.nn.Module]:
    """Compute the loss of the KTO trainer, with completions shifted by one as its data has them.

    The two models have changed roles: the other way round, the estimate of the divergence would be
    negative, and cut off at 0.
    """
    from trl import KTOTrainer

    model = build_fused_model(1)
    trainer = build_trainer(
        KTOTrainer,
        model=model,
        ref_model=build_fused_model(0),
        loss_type=loss_type,
        calculate_KL=loss_type == "kto",
        **values,
    )
    rows = build_rows(PROMPTS, CHOSEN)
    shifted = build_rows(PROMPTS, CHOSEN[-1:] + CHOSEN[:-1])
    rows.pop("labels")
    shifted.pop("labels")
    rows |= {f"KL_{name}": value for name, value in shifted.items()}
    return trainer._compute_loss(model, rows | {"label": torch.tensor(LABELS)}, False), model


def run_reward(center: float | None) -> tuple[Tensor, torch.nn.Module]:
    """Compute the loss of the reward trainer."""
    from trl import RewardTrainer

    model = build_model(2, LlamaForSequenceClassification, num_labels=1)
    trainer = build_trainer(
        RewardTrainer,
        model=model,
        args=SimpleNamespace(center_rewards_coefficient=center),
    )
    rows = build_rows(PROMPTS * 2, CHOSEN + REJECTED)
    inputs = {name: rows[name] for name in ("input_ids", "attention_mask")}
    return trainer.compute_loss(model, inputs), model


def run_jsd(beta: float, temperature: float) -> tuple[Tensor, torch.nn.Module]:
    """Compute the divergence of the GKD trainer over the preferred replies."""
    from trl.experimental.gkd import GKDTrainer

    model, teacher, rows = build_model(0), build_model(1), build_rows(PROMPTS, CHOSEN)
    inputs = {name: rows[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        wanted = teacher(**inputs).logits
    loss = GKDTrainer.generalized_jsd_loss(
        student_logits=model(**inputs).logits[:, :-1],
        teacher_logits=wanted[:, :-1],
        labels=rows["labels"][:, 1:],
        beta=beta,
        temperature=temperature,
    )
    return loss, model


def iter_cases() -> dict[str, Callable[[], tuple[Tensor, torch.nn.Module]]]:
    """Return the computations by the name and the fields of titanrun's loss, as JSON."""
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    cpo = {"loss_type": "sigmoid", "beta": 0.2, "cpo_alpha": 1.0, "alpha": 0.0}
    simpo = cpo | {"loss_type": "simpo", "simpo_gamma": 0.5}
    cases: list[tuple[dict[str, Any], Callable[[], tuple[Tensor, torch.nn.Module]]]] = [
        ({"name": "dpo", "beta": 0.2}, lambda: run_dpo("sigmoid", beta=0.2)),
        (
            {"name": "dpo", "beta": 0.2, "nll_weight": 1.0},
            lambda: run_dpo("sigmoid", "sft", beta=0.2),
        ),
        ({"name": "dpo", "beta": 0.2, "variant": "hinge"}, lambda: run_dpo("hinge", beta=0.2)),
        (
            {"name": "dpo", "beta": 0.2, "variant": "robust", "label_smoothing": 0.1},
            lambda: run_dpo("robust", beta=0.2, label_smoothing=0.1),
        ),
        (
            {"name": "dpo", "beta": 0.2, "variant": "apo_zero"},
            lambda: run_dpo("apo_zero", beta=0.2),
        ),
        (
            {"name": "dpo", "beta": 0.2, "variant": "sigmoid_norm"},
            lambda: run_dpo("sigmoid_norm", beta=0.2),
        ),
        ({"name": "ipo", "beta": 0.2}, lambda: run_dpo("ipo", beta=0.2)),
        ({"name": "cpo", "beta": 0.2}, lambda: run_concatenated(CPOTrainer, **cpo)),
        (
            {"name": "cpo", "beta": 0.2, "label_smoothing": 0.1, "nll_weight": 0.0},
            lambda: run_concatenated(CPOTrainer, **cpo | {"cpo_alpha": 0, "label_smoothing": 0.1}),
        ),
        (
            {"name": "simpo", "beta": 0.2, "gamma": 0.5, "nll_weight": 1.0},
            lambda: run_concatenated(CPOTrainer, **simpo),
        ),
        (
            {"name": "simpo", "beta": 2.0, "gamma": 0.5, "label_smoothing": 0.1},
            lambda: run_concatenated(
                CPOTrainer, **simpo | {"beta": 2.0, "cpo_alpha": 0, "label_smoothing": 0.1}
            ),
        ),
        ({"name": "orpo", "beta": 0.2}, lambda: run_concatenated(ORPOTrainer, beta=0.2)),
        (
            {"name": "kto", "beta": 0.2, "desirable_weight": 1.5, "undesirable_weight": 0.5},
            lambda: run_kto("kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.5),
        ),
        (
            {"name": "kto", "beta": 0.2, "variant": "apo_zero"},
            lambda: run_kto(
                "apo_zero_unpaired", beta=0.2, desirable_weight=1.0, undesirable_weight=1.0
            ),
        ),
        ({"name": "reward"}, lambda: run_reward(None)),
        (
            {"name": "reward", "center_coefficient": 0.01},
            lambda: run_reward(0.01),
        ),
        *(
            (
                {"name": "distillation", "beta": beta, "temperature": temperature},
                lambda beta=beta, temperature=temperature: run_jsd(beta, temperature),
            )
            for beta, temperature in ((0.0, 1.0), (0.5, 2.0), (1.0, 1.0))
        ),
    ]
    return {json.dumps(fields): run for fields, run in cases}


def record() -> dict[str, Tensor]:
    """Return all tensors of the file by name."""
    found: dict[str, Tensor] = {}
    for case, run in iter_cases().items():
        loss, model = run()
        loss.backward()
        kind = "reference" if '"kto"' in case else "model"
        if isinstance(model, LlamaForSequenceClassification):
            kind = "reward"
        found[f"{case}|loss"] = loss.detach().float().reshape(1)
        for name, parameter in model.named_parameters():
            found[f"{kind}|{name}"] = parameter.detach().clone()
            assert parameter.grad is not None, f"{name} has no gradient"
            found[f"{case}|{name}"] = parameter.grad.clone()
    return {name: value.float().contiguous().clone() for name, value in found.items()}


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare; exit 1 on a difference")
    found = record()
    if not parser.parse_args().check:
        save_file(found, PATH)
        return 0
    kept = load_file(PATH)
    differing = sorted(kept.keys() ^ found.keys()) + [
        name
        for name in kept.keys() & found.keys()
        if (kept[name] - found[name]).norm() > TOLERANCE * found[name].norm() + 1e-7
    ]
    print("".join(f"{name}: differs from trl\n" for name in differing), end="", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
