"""`python -m titanrun.models.transformers.describe`: the sizes of a class of transformers, for who must not load it."""

import json
import sys
from math import prod
from typing import Any

from torch import nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.meta_device import on_meta_device
from titanrun.models.transformers.architecture import layer_count
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.model import TransformersModel
from titanrun.models.transformers.parallelize import obstacles, shares

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_COUNTS = ("num_experts_per_tok", "top_k", "moe_top_k", "num_experts_per_token")


def main() -> int:
    """Reads a config as JSON from stdin, writes the answer as JSON to stdout."""
    sys.stdout.write(json.dumps(answer(sys.stdin.read())) + "\n")
    return 0


def answer(config: str) -> dict[str, Any]:
    """Parameters and widths of the model, and how tensor-parallel ranks could share it; or the problems with the config, which is JSON."""
    try:
        with on_meta_device():
            model = TransformersModel(TransformersConfig.model_validate_json(config), seq_len=1)
    except ProblemsFound as found:
        return {
            "problems": [
                [problem.code, problem.message, problem.path, problem.help]
                for problem in found.problems
            ]
        }
    split = {"obstacles": list(obstacles(model)), "shares": shares(model)}
    return {
        "parameters": {name: list(weight.shape) for name, weight in model.named_parameters()},
        "widths": widths(model),
        "split": split,
        "class": type(model.huggingface).__name__,
    }


def widths(model: TransformersModel) -> dict[str, int]:
    """The numbers that plans and throughput are computed from; 0 for what an architecture does not have."""
    config = model.huggingface.config
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    return {
        "hidden": hidden,
        "heads": heads,
        "head_dim": number(config, "head_dim") or (hidden // heads if heads else 0),
        "key_value_heads": number(config, "num_key_value_heads") or heads,
        "intermediate": number(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden,
        "layers": layer_count(config),
        "idle": idle_parameters(
            model, number(config, *EXPERT_COUNTS), number(config, *CHOSEN_COUNTS)
        ),
    }


def number(config: Any, *names: str) -> int:
    """The first of the attributes that is a number; 0 where none is."""
    return next((found for name in names if type(found := getattr(config, name, None)) is int), 0)


def idle_parameters(model: nn.Module, experts: int, chosen: int) -> int:
    """Parameters of the experts that a token is not sent to: those whose first dim counts experts, or whose name does."""
    if not 0 < chosen < experts:
        return 0
    inside = [weight.shape for name, weight in model.named_parameters() if ".experts." in name]
    return sum(prod(shape) for shape in inside) // experts * (experts - chosen)


if __name__ == "__main__":
    sys.exit(main())
