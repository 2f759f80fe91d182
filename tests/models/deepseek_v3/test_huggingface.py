"""Logits and gradients equal transformers' DeepseekV3ForCausalLM on random weights, in both
directions of the mapping."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Generator
from transformers import AutoModelForCausalLM, DeepseekV3ForCausalLM
from transformers import DeepseekV3Config as TheirConfig

from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.deepseek_v3.model import DeepseekV3
from titanrun.models.shared.spec.flavors import resolve_model_sizes

YARN = {
    "name": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 256,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
EXPERTS = {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5}
SHAPES = {
    "no query compression, no groups": {"q_lora_rank": None},
    "query compression, two of four groups": {
        "moe": {"num_expert_groups": 4, "num_limited_groups": 2}
    },
    "YaRN": {
        "rope": {"scaling": YARN},
        "moe": {"num_shared_experts": 1, "num_expert_groups": 2, "num_limited_groups": 1},
    },
    "YaRN whose mscales differ, from the first layer on experts": {
        "rope": {"scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}},
        "n_dense_layers": 0,
        "moe": {"route_norm": False, "use_grouped_mm": False},
    },
    "tied, all layers dense": {
        "tie_word_embeddings": True,
        "n_dense_layers": 3,
        "q_lora_rank": None,
    },
}
SEQ_LEN = 2048


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def config(request, deepseek_v3):
    # weights that let attention decide the logits: at the usual std of 0.02 the embedding does
    shape = {**request.param, "moe": {**EXPERTS, **request.param.get("moe", {})}}
    return deepseek_v3(**shape, latent_norm_eps=1e-6, init={"linear_std": 0.1})


def random_model(config, seed=0):
    model, generator = DeepseekV3(config, seq_len=SEQ_LEN), Generator().manual_seed(seed)
    model.init_weights(generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.uniform_(-0.2, 0.2, generator=generator)
    return model


def opened(config, model, folder):
    """The model as transformers opens it."""
    save_file(
        to_huggingface(config, model.state_dict()),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(to_huggingface_config(config, "float32")))
    theirs, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(theirs) is DeepseekV3ForCausalLM
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return theirs


def difference(model, theirs, config):
    """Largest distance of the logits, at the row's start and far behind it."""
    ids = torch.randint(config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    largest = 0.0
    for positions in (
        torch.arange(64)[None],
        torch.arange(1900, 1964)[None],
        torch.arange(64)[None] * 31,
    ):
        with torch.no_grad():
            ours, other = (
                model(ids, positions),
                theirs(ids, mask, position_ids=positions).logits,
            )
        assert 0.5 < other.std() < 5
        largest = max(largest, (ours - other).abs().max().item())
    print(f"largest difference of logits: {largest:.1e}")
    return largest


def test_transformers_opens_what_is_exported_and_gives_the_same_logits(config, tmp_path):
    model = random_model(config)
    assert difference(model, opened(config, model, tmp_path), config) < 1e-5


def test_weights_of_transformers_give_its_logits_here(config, tmp_path):
    torch.manual_seed(2)
    theirs = DeepseekV3ForCausalLM(
        TheirConfig(**{**to_huggingface_config(config, "float32"), "initializer_range": 0.1})
    )
    theirs.save_pretrained(tmp_path)
    read = DeepseekV3Config.model_validate(
        resolve_model_sizes(DeepseekV3Config(flavor="auto", hf_assets_path=str(tmp_path)))
    )
    model = DeepseekV3(read, seq_len=SEQ_LEN)
    model.load_state_dict(from_huggingface(read, load_file(tmp_path / "model.safetensors")))
    assert difference(model, theirs, config) < 1e-5


def test_gradients_are_those_of_transformers(config, tmp_path):
    model = random_model(config)
    theirs = opened(config, model, tmp_path)
    ids = torch.randint(config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    model(ids).logsumexp(-1).mean().backward()
    theirs(ids).logits.logsumexp(-1).mean().backward()
    # gradients are mapped as weights are
    state = model.state_dict() | {name: weight.grad for name, weight in model.named_parameters()}
    ours = {
        name: gradient
        for name, gradient in to_huggingface(config, state).items()
        if not name.endswith("bias")
    }
    wanted = experts_apart({name: weight.grad for name, weight in theirs.named_parameters()})
    assert ours.keys() == wanted.keys()
    differences = [distance(ours[name], wanted[name]) for name in ours]
    print(f"largest difference of gradients over their largest element: {max(differences):.1e}")
    assert max(differences) < 1e-5


def experts_apart(stacked):
    """Tensors of transformers under the names that it saves them by."""
    apart = {}
    for name, tensor in stacked.items():
        layer, _, kind = name.partition(".experts.")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(
            kind, ()
        )
        for expert, matrix in enumerate(tensor if parts else ()):
            pieces = zip(parts, matrix.chunk(len(parts)), strict=True)
            apart.update(
                {f"{layer}.experts.{expert}.{part}.weight": piece for part, piece in pieces}
            )
        if not parts:
            apart[name] = tensor
    return apart


def distance(ours, theirs):
    """Largest difference over the largest element; an expert that no token was sent to has no
    gradient."""
    largest = theirs.abs().max()
    return (
        0.0 if largest == 0 and not ours.any() else ((ours - theirs).abs().max() / largest).item()
    )


def test_packed_documents_have_the_logits_that_transformers_gives_them(deepseek_v3):
    attention = {"backend": "flex", "mask": "block_causal", "documents": "positions"}
    config = deepseek_v3(
        latent_norm_eps=1e-6,
        moe=EXPERTS,
        rope={"scaling": YARN},
        init={"linear_std": 0.1},
        attention=attention,
    )
    model = random_model(config)
    theirs = DeepseekV3ForCausalLM(TheirConfig(**to_huggingface_config(config, "float32")))
    theirs.load_state_dict(stacked(to_huggingface(config, model.state_dict())))
    positions = torch.stack(
        [
            torch.cat([torch.arange(length) for length in lengths])
            for lengths in ((20, 1, 43), (64,))
        ]
    )
    rows = torch.randint(config.vocab_size, (2, 65), generator=Generator().manual_seed(1))
    batch = document_ids_from_positions(
        replace(TokenBatch.from_sequences(rows), positions=positions)
    )
    with torch.no_grad():
        ours, across = (
            model(batch.tokens, positions, batch.document_ids),
            model(batch.tokens, positions),
        )
        # with a cache transformers does not look for documents
        expected = theirs(batch.tokens, position_ids=positions, use_cache=False).logits
    assert (ours - expected).abs().max() < 1e-5
    assert (ours - across).abs().max() > 0.01


def stacked(saved):
    """Tensors under the names that transformers saves them by, as its model holds them."""
    whole = {name: tensor for name, tensor in saved.items() if ".experts." not in name}
    for layer in {name.partition(".experts.")[0] for name in saved if ".experts." in name}:
        count = sum(name.startswith(f"{layer}.experts.") for name in saved) // 3
        of = {
            kind: [saved[f"{layer}.experts.{expert}.{kind}_proj.weight"] for expert in range(count)]
            for kind in ("gate", "up", "down")
        }
        whole[f"{layer}.experts.gate_up_proj"] = torch.cat(
            [torch.stack(of["gate"]), torch.stack(of["up"])], dim=1
        )
        whole[f"{layer}.experts.down_proj"] = torch.stack(of["down"])
    return whole


def test_there_and_back_is_bitwise_the_same(config):
    state = random_model(config).state_dict()
    back = from_huggingface(config, to_huggingface(config, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def exportable(deepseek_v3, **fields):
    return deepseek_v3(latent_norm_eps=1e-6, moe={**EXPERTS, **fields})


def test_weights_that_predict_more_tokens_are_left_where_they_are(deepseek_v3):
    config = exportable(deepseek_v3)
    state = random_model(config).state_dict()
    released = {
        **to_huggingface(config, state),
        "model.layers.3.eh_proj.weight": torch.ones(2),
        "model.layers.3.enorm.weight": torch.ones(2),
    }
    assert from_huggingface(config, released).keys() == state.keys()


def test_a_model_without_biases_takes_no_weights_that_have_some(deepseek_v3):
    config, unbiased = exportable(deepseek_v3), exportable(deepseek_v3, load_balance_coeff=None)
    exported = to_huggingface(config, random_model(config).state_dict())
    with pytest.raises(ProblemsFound, match="use an expert bias"):
        from_huggingface(unbiased, exported)
    state = random_model(unbiased).state_dict()
    again = to_huggingface(unbiased, state)
    assert again.keys() == exported.keys()
    assert from_huggingface(unbiased, again).keys() == state.keys()


def test_weights_of_another_model_are_named(deepseek_v3):
    config = exportable(deepseek_v3)
    exported = to_huggingface(config, random_model(config).state_dict())
    del exported["model.layers.1.self_attn.kv_a_layernorm.weight"]
    with pytest.raises(
        ProblemsFound, match=r"missing: model\.layers\.1\.self_attn\.kv_a_layernorm\.weight"
    ):
        from_huggingface(config, exported)
