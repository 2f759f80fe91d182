"""Which classes of transformers tensor-parallel ranks can share, and what is said of the others."""

import json
from pathlib import Path

import pytest

from titanrun.distributed.tensor_parallel import TPRole
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.model import TransformersModel
from titanrun.models.transformers.parallelize import build_tensor_plan

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SIZES |= {
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(**written: object) -> TransformersConfig:
    text = json.dumps(SIZES | written)
    return TransformersConfig.model_validate(
        {"config_json": text, "vocab_size": 64, "max_seq_len": 64}
    )


def test_the_plan_that_a_class_ships_becomes_roles() -> None:
    plan = build_tensor_plan(TransformersModel(config_of(model_type="mistral"), seq_len=8))
    attention = {
        "q_proj": TPRole.COLWISE,
        "k_proj": TPRole.COLWISE,
        "v_proj": TPRole.COLWISE,
        "o_proj": TPRole.ROWWISE,
    }
    feed_forward = {
        "gate_proj": TPRole.COLWISE,
        "up_proj": TPRole.COLWISE,
        "down_proj": TPRole.ROWWISE,
    }
    assert plan == {
        "tok_embeddings": TPRole.EMBEDDING,
        **{f"layers.0.self_attn.{name}": role for name, role in attention.items()},
        **{f"layers.0.mlp.{name}": role for name, role in feed_forward.items()},
        "layers.0.input_layernorm": TPRole.RESIDUAL_NORM,
        "layers.0.post_attention_layernorm": TPRole.RESIDUAL_NORM,
        "norm": TPRole.RESIDUAL_NORM,
        "output": TPRole.OUTPUT,
    }


@pytest.mark.parametrize(
    ("written", "degree", "words"),
    [
        ({"model_type": "mistral"}, 2, None),
        ({"model_type": "qwen2", "tie_word_embeddings": True}, 2, None),
        ({"model_type": "mistral"}, 4, "2 key and value heads are not divisible by 4"),
        (
            {"model_type": "mistral", "intermediate_size": 49},
            2,
            "49 outputs of layers.*.mlp.gate_proj are not divisible by 2",
        ),
        (
            {"model_type": "mistral", "attention_dropout": 0.1},
            2,
            "config.json sets dropout (attention_dropout: 0.1)",
        ),
        ({"model_type": "gpt2"}, 2, "GPT2LMHeadModel: the class has no tensor-parallel plan"),
        (
            {"model_type": "mixtral", "num_local_experts": 2},
            2,
            "as 'packed_colwise', which titanrun does not support",
        ),
        ({"model_type": "phi3"}, 2, "as 'rowwise_split_input', which titanrun does not support"),
        (
            {"model_type": "gemma", "head_dim": 8},
            2,
            "its plan does not contain tok_embeddings, a GemmaTextScaledWordEmbedding",
        ),
    ],
)
def test_what_keeps_ranks_from_sharing_a_class_is_said(
    written: dict[str, object], degree: int, words: str | None
) -> None:
    found = config_of(**written).find_tensor_parallel_obstacle(degree)
    assert found is None if words is None else words in str(found)
