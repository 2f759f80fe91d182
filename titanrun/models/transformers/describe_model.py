"""Print the sizes of a transformers class, for processes that must not import torch.

Usage: `python -m titanrun.models.transformers.describe_model`, with the config on stdin.
"""

import json
import sys
from math import prod
from typing import Any

from torch import nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.transformers.architecture import get_num_hidden_layers
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.model import TransformersModel
from titanrun.models.transformers.parallelize import get_split_sizes, iter_split_obstacles

EXPERT_COUNT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K_KEYS = ("num_experts_per_tok", "top_k", "moe_top_k", "num_experts_per_token")


def main() -> int:
    """Read a config as JSON from stdin and write the description as JSON to stdout."""
    sys.stdout.write(json.dumps(describe_model(sys.stdin.read())) + "\n")
    return 0


def describe_model(config: str) -> dict[str, Any]:
    """Return parameters, widths and tensor-parallel split of the model of a JSON config.

    Return the problems with the config if the model cannot be built.
    """
    try:
        with init_on_meta_device():
            model = TransformersModel(TransformersConfig.model_validate_json(config), seq_len=1)
    except ProblemsFound as found:
        return {
            "problems": [
                [problem.code, problem.message, problem.path, problem.hint]
                for problem in found.problems
            ]
        }
    split = {"obstacles": list(iter_split_obstacles(model)), "shares": get_split_sizes(model)}
    return {
        "parameters": {name: list(weight.shape) for name, weight in model.named_parameters()},
        "widths": collect_dimensions(model),
        "split": split,
        "class": type(model.huggingface_model).__name__,
    }


def collect_dimensions(model: TransformersModel) -> dict[str, int]:
    """Return the numbers for plans and throughput, 0 for those an architecture lacks."""
    config = model.huggingface_model.config
    hidden, heads = (
        get_first_int(config, "hidden_size"),
        get_first_int(config, "num_attention_heads"),
    )
    return {
        "hidden": hidden,
        "heads": heads,
        "head_dim": get_first_int(config, "head_dim") or (hidden // heads if heads else 0),
        "key_value_heads": get_first_int(config, "num_key_value_heads") or heads,
        "intermediate": get_first_int(config, "intermediate_size", "n_inner", "ffn_dim")
        or 4 * hidden,
        "layers": get_num_hidden_layers(config),
        "idle": count_inactive_expert_parameters(
            model, get_first_int(config, *EXPERT_COUNT_KEYS), get_first_int(config, *TOP_K_KEYS)
        ),
    }


def get_first_int(config: Any, *names: str) -> int:
    """Return the first of the attributes that is an integer, 0 if none is."""
    return next((found for name in names if type(found := getattr(config, name, None)) is int), 0)


def count_inactive_expert_parameters(model: nn.Module, experts: int, chosen: int) -> int:
    """Count the parameters of experts to which a token is not sent.

    Weights of experts are found by name. Their first dim, or their number, counts experts.
    """
    if not 0 < chosen < experts:
        return 0
    inside = [weight.shape for name, weight in model.named_parameters() if ".experts." in name]
    return sum(prod(shape) for shape in inside) // experts * (experts - chosen)


if __name__ == "__main__":
    sys.exit(main())
