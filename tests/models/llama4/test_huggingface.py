"""Logits and gradients equal transformers' Llama4ForCausalLM on random weights, in both directions
of the mapping."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Generator
from transformers import AutoModelForCausalLM, Llama4ForCausalLM, Llama4TextConfig

from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.models.llama4.config import Llama4Config
from titanrun.models.llama4.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.llama4.model import Llama4
from titanrun.models.shared.spec.flavors import resolve_model_sizes

# original context 64: at the positions below frequencies of all three bands are in use
STRETCHED = {
    "name": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# torchtitan's flavors leave no ramp between what is stretched and what is not
AT_ONCE = {**STRETCHED, "factor": 16.0, "high_freq_factor": 1.0}
# torchtitan's flavors: no norm, no sharpening, the first layer of four without RoPE
OF_TORCHTITAN = {"qk_norm": False, "attn_scale": 0.0, "first_nope_layer": 0}
SHAPES = {
    "as released": {"rope": {"scaling": STRETCHED}},
    "as torchtitan's irope flavors": OF_TORCHTITAN,
    "RoPE in all layers, whole rows": {
        **OF_TORCHTITAN,
        "every_n_layers_nope": None,
        "fixed_attn_block_size": None,
        "rope": {"scaling": None},
    },
    "experts in all layers, three of eight": {
        "interleave_moe_layer_step": 1,
        "moe": {"top_k": 3},
        "n_layers": 3,
        "first_nope_layer": 1,
        "rope": {"scaling": AT_ONCE},
    },
    "other heads, tied, experts one by one": {
        "dim": 96,
        "n_heads": 6,
        "n_kv_heads": 1,
        "head_dim": 32,
        "n_layers": 3,
        "interleave_moe_layer_step": 3,
        "every_n_layers_nope": 2,
        "first_nope_layer": 1,
        "tie_word_embeddings": True,
        "moe": {"use_grouped_mm": False},
    },
}
SEQ_LEN = 256


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def config(request, llama4):
    return made(llama4, request.param)


def made(llama4, fields):
    """A config whose weights let attention and experts decide the logits: at the usual std of 0.02
    the embedding does."""
    return llama4(**fields, init={"linear_std": 0.2})


def random_model(config, seed=0):
    model, generator = Llama4(config, seq_len=SEQ_LEN), Generator().manual_seed(seed)
    model.init_weights(generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return model


def exported(model, folder):
    """What transformers makes of the model's export."""
    save_file(
        to_huggingface(model.config, model.state_dict()),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(to_huggingface_config(model.config, "float32")))
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def some_ids(config, length=64):
    return torch.randint(config.vocab_size, (2, length), generator=Generator().manual_seed(1))


def difference(model, theirs):
    """Largest distance of the logits, over several blocks of a row."""
    ids = some_ids(model.config, 128)
    with torch.no_grad():
        ours, other = model(ids), theirs(ids).logits
    assert 0.5 < other.std() < 5
    largest = (ours - other).abs().max().item()
    print(f"largest difference of logits: {largest:.1e}")
    return largest


def test_transformers_opens_what_is_exported_and_gives_the_same_logits(config, tmp_path):
    model = random_model(config)
    theirs = exported(model, tmp_path)
    assert type(theirs) is Llama4ForCausalLM
    assert difference(model, theirs) < 1e-5


def test_weights_of_transformers_give_its_logits_here(config, tmp_path):
    torch.manual_seed(2)
    written = to_huggingface_config(config, "float32")
    theirs = Llama4ForCausalLM(
        Llama4TextConfig(**written, initializer_range=0.1, attn_implementation="eager")
    )
    theirs.save_pretrained(tmp_path)
    read = resolve_model_sizes(Llama4Config(flavor="auto", hf_assets_path=str(tmp_path)))
    model = Llama4(Llama4Config.model_validate(read), seq_len=SEQ_LEN)
    state = from_huggingface(model.config, load_file(tmp_path / "model.safetensors"))
    model.load_state_dict(state)
    assert difference(model, theirs) < 1e-5


def test_gradients_are_those_of_transformers(config, tmp_path):
    model = random_model(config)
    theirs = exported(model, tmp_path)
    ids = some_ids(config)
    model(ids).logsumexp(-1).mean().backward()
    theirs(ids).logits.logsumexp(-1).mean().backward()
    compare_gradients(model, theirs)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_packed_documents_do_not_see_each_other(llama4, backend, tmp_path):
    """Without sharpening, which transformers counts along the row, also where documents begin
    anew."""
    fields = {
        "attention": {"backend": backend, "mask": "block_causal", "documents": "positions"},
        "attn_scale": 0.0,
    }
    model = random_model(made(llama4, fields))
    theirs = exported(model, tmp_path)
    rows = some_ids(model.config, 65)
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
        batch.tokens,
        masks(batch.document_ids, model.config.fixed_attn_block_size),
        position_ids=positions,
    ).logits
    assert (ours - expected).abs().max() < 1e-5
    assert (ours - model(batch.tokens, positions)).abs().max() > 0.01
    ours.logsumexp(-1).mean().backward()
    expected.logsumexp(-1).mean().backward()
    compare_gradients(model, theirs)


def test_a_packed_document_is_sharpened_as_if_it_were_alone(llama4):
    config = made(
        llama4,
        {
            "attention": {"mask": "block_causal", "documents": "positions"},
            "fixed_attn_block_size": None,
        },
    )
    model, ids = random_model(config), some_ids(config)[:1]
    packed = model(ids, torch.arange(64)[None] % 32, torch.arange(64)[None] // 32)
    torch.testing.assert_close(packed[:, 32:], model(ids[:, 32:]), atol=1e-5, rtol=0)


def masks(documents, block):
    """What transformers adds to the scores of each kind of layer."""
    place = torch.arange(documents.size(1))
    own = (documents[:, :, None] == documents[:, None, :]) & (place[:, None] >= place[None, :])
    seen = {
        "full_attention": own,
        "chunked_attention": own & (place[:, None] // block == place[None, :] // block),
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
    worst = 0.0
    for name, parameter in theirs.named_parameters():
        largest = parameter.grad.abs().max().item()
        assert largest > 0, name
        worst = max(worst, (found[name] - parameter.grad).abs().max().item() / largest)
    print(f"largest difference of gradients: {worst:.1e}")
    assert worst < 1e-5


def test_there_and_back_is_bitwise_the_same(config):
    state = random_model(config).state_dict()
    back = from_huggingface(config, to_huggingface(config, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_text_model_of_one_that_sees_is_read(llama4):
    config = llama4()
    state = random_model(config).state_dict()
    whole = {
        f"language_model.{name}": weight for name, weight in to_huggingface(config, state).items()
    }
    whole["vision_model.class_embedding"] = whole["multi_modal_projector.linear_1.weight"] = (
        torch.zeros(1)
    )
    back = from_huggingface(config, whole)
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        (
            "model.layers.1.feed_forward.experts.gate_up_proj",
            None,
            r"missing: model\.layers\.1\.feed_forward\.experts\.gate_up_proj",
        ),
        (
            "model.layers.1.feed_forward.experts.gate_up_proj",
            (8, 96, 64),
            "gate_up_proj is 8 x 96 x 64, not 8 x 64 x 96",
        ),
        (
            "model.layers.0.feed_forward.router.weight",
            (8, 64),
            r"does not have: model\.layers\.0\.feed_forward\.router\.weight",
        ),
    ],
)
def test_weights_of_another_model_are_named_as_they_are_on_disk(llama4, name, weight, message):
    config = llama4()
    exported = to_huggingface(config, random_model(config).state_dict())
    exported[name] = torch.zeros(weight or 1)
    if weight is None:
        del exported[name]
    with pytest.raises(ProblemsFound, match=message):
        from_huggingface(config, exported)
