"""Logits equal transformers' LlamaForCausalLM on random weights, in both directions of the
mapping."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import Generator
from transformers import LlamaConfig, LlamaForCausalLM

from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.models.llama3.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.llama3.model import Llama3

# original context 256: at 40 to 2000 positions all three bands of the scaling are in use
STRETCHED = {
    "theta": 10000.0,
    "scaling": {"name": "llama3", "original_max_position_embeddings": 256},
}
SHAPES = {
    "grouped queries": {"n_kv_heads": 2, "rope": {"theta": 10000.0, "scaling": None}},
    "tied": {"tie_word_embeddings": True, "n_kv_heads": 1},
    "scaled, far positions": {"n_heads": 2, "rope": STRETCHED},
    "YaRN": {
        "n_heads": 2,
        "rope": {
            "theta": 10000.0,
            "scaling": {"name": "yarn", "factor": 8.0, "original_max_position_embeddings": 256},
        },
    },
    "explicit head width": {"dim": 96, "head_dim": 32, "n_kv_heads": 2, "rope": STRETCHED},
    "Llama 3 defaults": {"n_layers": 3, "vocab_size": 500, "max_seq_len": 131072},
}
SEQ_LEN = 2048


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def config(request, llama3):
    # weights that let attention decide the logits: at the usual std of 0.02 the embedding does
    return llama3(**request.param, init={"linear_std": 0.1})


def random_model(config, seed=0):
    model, generator = Llama3(config, seq_len=SEQ_LEN), Generator().manual_seed(seed)
    model.init_weights(generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return model


def difference(model, transformers_model, config):
    """Largest distance of the logits, at the row's start and far behind it."""
    ids = torch.randint(config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    # without a mask transformers takes a gap between positions for the start of another document
    mask = torch.ones_like(ids)
    largest = 0.0
    for positions in (
        torch.arange(64)[None],
        torch.arange(1900, 1964)[None],
        torch.arange(64)[None] * 31,
    ):
        with torch.no_grad():
            ours, theirs = (
                model(ids, positions),
                transformers_model(ids, mask, position_ids=positions).logits,
            )
        assert 0.5 < theirs.std() < 5
        largest = max(largest, (ours - theirs).abs().max().item())
    print(f"largest difference of logits: {largest:.1e}")
    return largest


def test_transformers_opens_what_is_exported_and_gives_the_same_logits(config, tmp_path):
    model = random_model(config)
    save_file(
        to_huggingface(config, model.state_dict()),
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "config.json").write_text(json.dumps(to_huggingface_config(config, "float32")))
    theirs = LlamaForCausalLM.from_pretrained(tmp_path)
    assert theirs.dtype == torch.float32
    assert difference(model, theirs, config) < 1e-5


def test_weights_of_transformers_give_its_logits_here(config):
    torch.manual_seed(2)
    theirs = LlamaForCausalLM(
        LlamaConfig(**to_huggingface_config(config, "float32"), initializer_range=0.1)
    )
    model = Llama3(config, seq_len=SEQ_LEN)
    model.load_state_dict(from_huggingface(config, theirs.state_dict()))
    assert difference(model, theirs, config) < 1e-5


def test_gradients_are_those_of_transformers(config):
    model = random_model(config)
    theirs = LlamaForCausalLM(LlamaConfig(**to_huggingface_config(config, "float32")))
    theirs.load_state_dict(
        to_huggingface(config, model.state_dict()), strict=not config.tie_word_embeddings
    )
    ids = torch.randint(config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    model(ids).logsumexp(-1).mean().backward()
    theirs(ids).logits.logsumexp(-1).mean().backward()
    gradients = to_huggingface(
        config, {name: parameter.grad for name, parameter in model.named_parameters()}
    )
    largest = 0.0
    for name, parameter in theirs.named_parameters():
        distance = float(
            (gradients[name] - parameter.grad).abs().max() / parameter.grad.abs().max()
        )
        assert distance < 1e-5, name
        largest = max(largest, distance)
    print(f"largest difference of gradients: {largest:.1e}")


@pytest.mark.parametrize("backend", ["sdpa", "flex", "varlen"])
def test_packed_documents_have_the_logits_and_gradients_that_transformers_gives_them(
    llama3, backend
):
    config = llama3(
        n_kv_heads=2,
        init={"linear_std": 0.1},
        attention={"backend": backend, "mask": "block_causal", "documents": "positions"},
    )
    model = random_model(config)
    theirs = LlamaForCausalLM(LlamaConfig(**to_huggingface_config(config, "float32")))
    theirs.load_state_dict(to_huggingface(config, model.state_dict()))
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
    gradients = to_huggingface(
        config, {name: parameter.grad for name, parameter in model.named_parameters()}
    )
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(
            gradients[name],
            parameter.grad,
            atol=1e-6,
            rtol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_there_and_back_is_bitwise_the_same(config):
    state = random_model(config).state_dict()
    back = from_huggingface(config, to_huggingface(config, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_a_tied_head_is_neither_exported_nor_asked_for(llama3):
    config = llama3(tie_word_embeddings=True)
    model = random_model(config)
    exported = to_huggingface(config, dict(model.named_parameters()))
    assert "lm_head.weight" not in exported
    with_head = {**exported, "lm_head.weight": torch.zeros(1)}
    assert torch.equal(from_huggingface(config, with_head)["output.weight"], model.output.weight)


def test_saved_rope_frequencies_are_dropped(llama3):
    config = llama3()
    exported = to_huggingface(config, random_model(config).state_dict())
    exported["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    assert "output.weight" in from_huggingface(config, exported)


def test_weights_of_another_model_are_named(llama3):
    config = llama3()
    exported = to_huggingface(config, random_model(config).state_dict())
    del exported["model.norm.weight"]
    exported["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    exported["lm_head.weight"] = torch.zeros(7, 64)
    with pytest.raises(ProblemsFound) as found:
        from_huggingface(config, exported)
    assert {problem.code for problem in found.value.problems} == {"checkpoint"}
    assert found.value.exit_code == 4
    assert [problem.message for problem in found.value.problems] == [
        "weights the model needs are missing: model.norm.weight",
        "weights the model does not have: model.layers.0.self_attn.q_proj.bias",
        "weights with other shapes than the model's: lm_head.weight is 7 x 64, not 96 x 64",
    ]
    with pytest.raises(ProblemsFound):
        to_huggingface(config, {"output.weight": torch.zeros(96, 64)})
