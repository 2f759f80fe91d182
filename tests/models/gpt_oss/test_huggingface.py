"""Logits and gradients equal transformers' GptOssForCausalLM on random weights, in both directions
of the mapping."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Generator
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from titanrun.components.checkpoints.dequantize import dequantize_weights
from titanrun.components.checkpoints.spec.hf_quantization import HFQuantization
from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.models.gpt_oss.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.gpt_oss.model import GptOss

# original context 64: at 40 to 2000 positions the whole ramp is in use
YARN = {"name": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "truncate": False}
SHAPES = {
    "as published": {},
    "other heads, three layers": {
        "dim": 96,
        "n_heads": 6,
        "n_kv_heads": 1,
        "n_layers": 3,
        "head_dim": 32,
    },
    "stretched early": {"rope": {"theta": 10000.0, "scaling": YARN}},
    "tied, without windows and stretching": {
        "tie_word_embeddings": True,
        "sliding_window": None,
        "rope": {"scaling": None},
    },
    "sdpa, experts one by one": {
        "attention": {"backend": "sdpa", "mask": "causal"},
        "moe": {"use_grouped_mm": False},
    },
    "gates that are cut off": {"moe": {"swiglu_limit": 0.05, "swiglu_alpha": 3.0}},
}
SEQ_LEN = 2048


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def config(request, gpt_oss):
    return made(gpt_oss, request.param)


def made(gpt_oss, fields):
    """A config whose weights let attention and experts decide the logits: at the usual std of 0.02
    the embedding does."""
    return gpt_oss(**fields, init={"linear_std": 0.3})


def random_model(config, seed=0):
    model, generator = GptOss(config, seq_len=SEQ_LEN), Generator().manual_seed(seed)
    model.init_weights(generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
        if "gate.bias" in name or "sinks" in name:
            parameter.data.normal_(generator=generator)
    return model


def exported(model, folder):
    """What transformers makes of the model's export; eagerly, since its other kernels have no sinks
    on a CPU."""
    save_file(
        to_huggingface(model.config, model.state_dict()),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(to_huggingface_config(model.config, "float32")))
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def difference(model, theirs):
    """Largest distance of the logits, at the row's start and far behind it."""
    ids = torch.randint(model.config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    largest = 0.0
    for positions in (
        torch.arange(64)[None],
        torch.arange(1900, 1964)[None],
        torch.arange(64)[None] * 31,
    ):
        with torch.no_grad():
            ours, other = (
                model(ids, positions),
                theirs(ids, torch.ones_like(ids), position_ids=positions).logits,
            )
        assert 0.5 < other.std() < 5
        largest = max(largest, (ours - other).abs().max().item())
    print(f"largest difference of logits: {largest:.1e}")
    return largest


def test_transformers_opens_what_is_exported_and_gives_the_same_logits(config, tmp_path):
    model = random_model(config)
    theirs = exported(model, tmp_path)
    assert type(theirs) is GptOssForCausalLM
    assert difference(model, theirs) < 1e-5


def test_weights_of_transformers_give_its_logits_here(config, tmp_path):
    torch.manual_seed(2)
    theirs = GptOssForCausalLM(
        GptOssConfig(
            **to_huggingface_config(config, "float32"),
            initializer_range=0.1,
            attn_implementation="eager",
        )
    )
    theirs.save_pretrained(tmp_path)
    model = GptOss(config, seq_len=SEQ_LEN)
    model.load_state_dict(from_huggingface(config, load_file(tmp_path / "model.safetensors")))
    assert difference(model, theirs) < 1e-5


def test_gradients_are_those_of_transformers(config, tmp_path):
    model = random_model(config)
    theirs = exported(model, tmp_path)
    ids = torch.randint(config.vocab_size, (2, 64), generator=Generator().manual_seed(1))
    model(ids).logsumexp(-1).mean().backward()
    theirs(ids).logits.logsumexp(-1).mean().backward()
    compare_gradients(model, theirs)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_packed_documents_do_not_see_each_other(gpt_oss, backend, tmp_path):
    config = made(
        gpt_oss,
        {"attention": {"backend": backend, "mask": "block_causal", "documents": "positions"}},
    )
    model = random_model(config)
    theirs = exported(model, tmp_path)
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
    ours = model(batch.tokens, positions, batch.document_ids)
    expected = theirs(
        batch.tokens, masks(batch.document_ids, config.sliding_window), position_ids=positions
    ).logits
    assert (ours - expected).abs().max() < 1e-5
    assert (ours - model(batch.tokens, positions)).abs().max() > 0.01
    ours.logsumexp(-1).mean().backward()
    expected.logsumexp(-1).mean().backward()
    compare_gradients(model, theirs)


def masks(documents, window):
    """What transformers adds to the scores of each kind of layer, which this class does not make of
    positions itself."""
    place = torch.arange(documents.size(1))
    ahead = place[:, None] - place[None, :]
    own = documents[:, :, None] == documents[:, None, :]
    seen = {
        "full_attention": own & (ahead >= 0),
        "sliding_attention": own & (ahead >= 0) & (ahead < window),
    }
    return {
        kind: torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)[:, None]
        for kind, allowed in seen.items()
    }


def compare_gradients(model, theirs):
    """Every gradient within 1e-5 of the largest number in it."""
    found = to_huggingface(
        model.config,
        {**model.state_dict(), **{name: weight.grad for name, weight in model.named_parameters()}},
    )
    for name, parameter in theirs.named_parameters():
        largest = parameter.grad.abs().max().item()
        assert largest > 0, name
        torch.testing.assert_close(
            found[name],
            parameter.grad,
            atol=1e-5 * largest,
            rtol=0,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_there_and_back_is_bitwise_the_same(config):
    state = random_model(config).state_dict()
    back = from_huggingface(config, to_huggingface(config, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_weights_that_openai_published_in_mxfp4_are_those_that_transformers_makes_of_them(
    gpt_oss,
):
    config = gpt_oss(dim=64, moe={"hidden_dim": 32, "num_experts": 4})
    state = to_huggingface(config, random_model(config).state_dict())
    wanted = {}
    for name in [
        name for name in state if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    ]:
        experts, width, rows = state.pop(name).shape
        blocks = torch.randint(
            256,
            (experts, rows, width // 32, 16),
            generator=Generator().manual_seed(0),
            dtype=torch.uint8,
        )
        scales = torch.randint(
            120, 130, blocks.shape[:-1], generator=Generator().manual_seed(1), dtype=torch.uint8
        )
        state |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        wanted[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    weights = from_huggingface(config, dequantize_weights(state, HFQuantization("mxfp4")))
    for layer in range(2):
        theirs = f"model.layers.{layer}.mlp.experts"
        for ours, name in (("mlp1_weight", "gate_up_proj"), ("mlp2_weight", "down_proj")):
            assert torch.equal(
                weights[f"layers.{layer}.moe.experts.{ours}"], wanted[f"{theirs}.{name}"].mT
            )


def test_weights_of_another_model_are_named(gpt_oss):
    config = gpt_oss()
    exported = to_huggingface(config, random_model(config).state_dict())
    del exported["model.layers.1.self_attn.sinks"]
    with pytest.raises(ProblemsFound, match=r"missing: model\.layers\.1\.self_attn\.sinks"):
        from_huggingface(config, exported)
