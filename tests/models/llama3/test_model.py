"""The Llama 3 model: construction, initial weights, positions, tying, and the recorded
reference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Generator

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.llama3.huggingface import from_huggingface
from titanrun.models.llama3.model import Llama3
from titanrun.models.shared.spec.flavors import resolve_model_sizes

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "llama3_debug_fp32"


def built(config, *, seq_len=32, seed=0, dtype=torch.float32):
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            model = Llama3(config, seq_len=seq_len)
    finally:
        torch.set_default_dtype(torch.float32)
    model.to_empty(device="cpu")
    model.init_weights(Generator().manual_seed(seed))
    return model


def tokens(rows=2, length=32, seed=0):
    return torch.randint(96, (rows, length), generator=Generator().manual_seed(seed))


def test_a_model_built_on_meta_is_the_model_built_at_once(llama3):
    config = llama3()
    at_once = Llama3(config, seq_len=32)
    at_once.init_weights(Generator().manual_seed(0))
    from_meta = built(config)
    assert all(
        torch.equal(one, other)
        for one, other in zip(at_once.parameters(), from_meta.parameters(), strict=True)
    )
    assert torch.equal(at_once.rope_table, from_meta.rope_table)
    assert torch.equal(at_once(tokens()), from_meta(tokens()))


def test_parameter_names_are_torchtitans(llama3):
    layer = [
        *(f"attention.{name}.weight" for name in ("wq", "wk", "wv", "wo")),
        *(f"feed_forward.{name}.weight" for name in ("w1", "w2", "w3")),
        "attention_norm.weight",
        "ffn_norm.weight",
    ]
    layers = [f"layers.{index}.{name}" for index in range(2) for name in layer]
    assert list(built(llama3()).state_dict()) == [
        "tok_embeddings.weight",
        *layers,
        "norm.weight",
        "output.weight",
    ]


@pytest.mark.parametrize("depth_scaling", ["layer", "model"])
def test_each_kind_of_weight_has_its_std_and_bound(llama3, depth_scaling):
    config = llama3(
        vocab_size=2000,
        dim=256,
        n_layers=4,
        feed_forward={"hidden_dim": 512},
        init={"depth_scaling": depth_scaling},
    )
    weights = built(config).state_dict()
    deep = 0.02 / math.sqrt(2 * 4)
    shallow = 0.02 / math.sqrt(2) if depth_scaling == "layer" else deep
    for layer, scaled in (("layers.0", shallow), ("layers.3", deep)):
        for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1"):
            assert weights[f"{layer}.{name}.weight"].std().item() == pytest.approx(0.02, rel=0.02)
        for name in ("attention.wo", "feed_forward.w2", "feed_forward.w3"):
            assert weights[f"{layer}.{name}.weight"].std().item() == pytest.approx(scaled, rel=0.02)
    assert all((weights[name] == 1).all() for name in weights if "norm" in name)
    embedding, output = weights["tok_embeddings.weight"], weights["output.weight"]
    assert embedding.std().item() == pytest.approx(1, rel=0.01)
    assert embedding.abs().max() > 4
    # a normal cut at 3 stds has 0.98658 of its std
    assert output.std().item() == pytest.approx(0.98658 / 16, rel=0.01)
    assert 2.9 / 16 < output.abs().max() <= 3 / 16


def test_the_init_section_decides_the_draws(llama3):
    init = {
        "embedding_std": 0.5,
        "linear_std": 0.1,
        "truncation": 0.2,
        "output_std": 0.3,
        "output_truncation_stds": 1.0,
    }
    weights = built(llama3(dim=128, n_heads=2, init=init)).state_dict()
    assert weights["tok_embeddings.weight"].std().item() == pytest.approx(0.5, rel=0.03)
    assert 0.19 < weights["layers.0.attention.wq.weight"].abs().max() <= 0.2
    assert 0.29 < weights["output.weight"].abs().max() <= 0.3


def test_the_same_generator_state_gives_the_same_weights(llama3):
    first, second, third = (built(llama3(), seed=seed).output.weight for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_tied_weights_are_one_matrix_with_the_heads_std(llama3):
    model = built(llama3(vocab_size=2000, tie_word_embeddings=True))
    assert model.output.weight is model.tok_embeddings.weight
    assert model.output.weight.std().item() == pytest.approx(0.98658 / 8, rel=0.02)
    assert model.output.weight.abs().max() <= 3 / 8
    assert "output.weight" not in dict(model.named_parameters())


def test_a_later_token_changes_no_earlier_logit(llama3):
    model = built(llama3(n_kv_heads=2))
    before, after = tokens(), tokens()
    after[:, 20:] = 0
    assert torch.equal(model(before)[:, :20], model(after)[:, :20])


def test_positions_are_counted_where_they_are_absent(llama3):
    model, counted = built(llama3(init={"linear_std": 0.2})), torch.arange(16)
    ids = tokens(length=16)
    logits = model(ids)
    assert torch.equal(logits, model(ids, counted[None]))
    assert torch.equal(logits, model(ids, counted.expand(2, 16)))
    # RoPE knows distances alone, and positions of a row are the row's own
    shifted = model(ids, torch.stack([counted, counted + 16]))
    assert torch.equal(logits[0], shifted[0])
    assert torch.allclose(logits[1], shifted[1], atol=1e-5)
    assert not torch.allclose(
        logits[1], model(ids, torch.stack([counted, counted * 2]))[1], atol=1e-2
    )


def test_under_bfloat16_the_rope_table_stays_complex64(llama3):
    model, exact = built(llama3(), dtype=torch.bfloat16), built(llama3())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.rope_table, exact.rope_table)
    assert model(tokens()).dtype == torch.bfloat16
    assert torch.allclose(model(tokens()).float(), exact(tokens()), atol=0.1)


def test_a_table_that_was_cast_is_noticed(llama3):
    model = built(llama3())
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        model.to(torch.bfloat16)
    with pytest.raises(AssertionError, match="init_weights"):
        model(tokens())


def test_gradients_reach_every_parameter(llama3):
    model = built(llama3(n_kv_heads=1))
    model(tokens()).sum().backward()
    assert all(
        parameter.grad.isfinite().all() and parameter.grad.any() for parameter in model.parameters()
    )


@pytest.mark.skipif(not REFERENCE.exists(), reason="the recorded run is not beside the repository")
def test_recorded_weights_give_the_recorded_loss_and_gradient_norm():
    config = Llama3Config.model_validate(
        resolve_model_sizes(Llama3Config(flavor="auto", hf_assets_path=str(REFERENCE)))
    )
    model = built(config, seq_len=256)
    model.load_state_dict(from_huggingface(config, load_file(REFERENCE / "model.safetensors")))
    rows = torch.from_numpy(np.load(REFERENCE / "tokens.npy")[:8].astype(np.int64))
    logits = model(rows[:, :-1]).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum") / 2048
    loss.backward()
    recorded = json.loads((REFERENCE / "steps.jsonl").read_text().splitlines()[0])
    assert loss.item() == pytest.approx(recorded["loss"], rel=1e-7)
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert norm.item() == pytest.approx(recorded["grad_norm"], rel=1e-6)
