"""Logits equal transformers' Qwen3ForCausalLM and Qwen3MoeForCausalLM on random weights, in both
directions of the mapping."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Generator
from transformers import (
    AutoModelForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.models.qwen3.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.qwen3.model import Qwen3

EXPERTS = {
    "num_experts": 8,
    "top_k": 3,
    "hidden_dim": 48,
    "num_shared_experts": 0,
    "score_func": "softmax",
    "route_norm": True,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "load_balance_coeff": 1e-3,
}
SHAPES = {
    "heads wider than the stream": {"head_dim": 32},
    "tied": {"tie_word_embeddings": True, "n_kv_heads": 1},
    "experts": {"moe": EXPERTS},
    "experts one by one, scores not normalised": {
        "moe": {**EXPERTS, "use_grouped_mm": False, "route_norm": False}
    },
}
SEQ_LEN = 2048


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def config(request, qwen3):
    # weights that let attention decide the logits: at the usual std of 0.02 the embedding does
    return qwen3(**request.param, init={"linear_std": 0.1})


def random_model(config, seed=0):
    model, generator = Qwen3(config, seq_len=SEQ_LEN), Generator().manual_seed(seed)
    model.init_weights(generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return model


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
    theirs = opened(config, model, tmp_path)
    assert type(theirs) is (Qwen3ForCausalLM if config.moe is None else Qwen3MoeForCausalLM)
    assert difference(model, theirs, config) < 1e-5


def test_weights_of_transformers_give_its_logits_here(config, tmp_path):
    torch.manual_seed(2)
    written = {**to_huggingface_config(config, "float32"), "initializer_range": 0.1}
    theirs = (
        Qwen3ForCausalLM(Qwen3Config(**written))
        if config.moe is None
        else Qwen3MoeForCausalLM(Qwen3MoeConfig(**written))
    )
    theirs.save_pretrained(tmp_path)
    model = Qwen3(config, seq_len=SEQ_LEN)
    model.load_state_dict(from_huggingface(config, load_file(tmp_path / "model.safetensors")))
    assert difference(model, theirs, config) < 1e-5


def opened(config, model, folder):
    """The class of transformers with the weights of the model."""
    save_file(
        to_huggingface(config, model.state_dict()),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(to_huggingface_config(config, "float32")))
    return AutoModelForCausalLM.from_pretrained(folder)


def gradients_agree(config, model, theirs, folder):
    """Fails where a gradient is further from the class's than a share of its largest number; tells
    the largest distance."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
    theirs.save_pretrained(folder)
    wanted, largest = from_huggingface(config, load_file(folder / "model.safetensors")), 0.0
    for name, parameter in model.named_parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        distance = (found - wanted[name]).abs().max() / wanted[name].abs().max().clamp(min=1e-30)
        assert distance < 1e-5, f"{name}: {distance}"
        largest = max(largest, float(distance))
    print(f"largest difference of gradients: {largest:.1e}")


def test_gradients_are_those_of_transformers(config, tmp_path):
    model = random_model(config)
    theirs = opened(config, model, tmp_path)
    ids = torch.randint(config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    model(ids).logsumexp(-1).mean().backward()
    theirs(ids).logits.logsumexp(-1).mean().backward()
    gradients_agree(config, model, theirs, tmp_path)


@pytest.mark.parametrize("backend", ["sdpa", "flex", "varlen"])
@pytest.mark.parametrize("moe", [None, EXPERTS], ids=["dense", "experts"])
def test_packed_documents_have_the_logits_and_gradients_that_transformers_gives_them(
    qwen3, moe, backend, tmp_path
):
    attention = {"backend": backend, "mask": "block_causal", "documents": "positions"}
    config = qwen3(moe=moe, init={"linear_std": 0.1}, attention=attention)
    model = random_model(config)
    theirs = opened(config, model, tmp_path)
    rows = torch.randint(config.vocab_size, (2, 65), generator=Generator().manual_seed(1))
    positions = torch.stack(
        [
            torch.cat([torch.arange(length) for length in lengths])
            for lengths in ((20, 1, 43), (64,))
        ]
    )
    batch = document_ids_from_positions(
        replace(TokenBatch.from_sequences(rows), positions=positions)
    )
    # with a cache transformers does not look for documents
    ours, expected = (
        model(batch.tokens, positions, batch.document_ids),
        theirs(batch.tokens, position_ids=positions, use_cache=False).logits,
    )
    assert (ours - expected).abs().max() < 1e-5
    assert (ours - model(batch.tokens, positions)).abs().max() > 0.1
    for logits in (ours, expected):
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()).backward()
    gradients_agree(config, model, theirs, tmp_path)


def test_there_and_back_is_bitwise_the_same(config):
    state = random_model(config).state_dict()
    back = from_huggingface(config, to_huggingface(config, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_weights_of_another_model_are_named(qwen3):
    config = qwen3(moe=EXPERTS)
    exported = to_huggingface(config, random_model(config).state_dict())
    del exported["model.layers.1.mlp.experts.7.up_proj.weight"]
    with pytest.raises(
        ProblemsFound, match=r"missing: model\.layers\.1\.mlp\.experts\.7\.up_proj\.weight"
    ):
        from_huggingface(config, exported)
