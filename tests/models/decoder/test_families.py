"""Decoders from ingredients are the families, bit for bit: as recipes, as Hugging Face models, and
in what is known of them before."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.spec.family import load_family_module
from titanrun.models.shared.spec.flops import count_active_parameters, flops_per_token
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.build.build_model import build_model, materialize_and_init

# the recipe of each pair that is not written as ingredients
FAMILIES = {
    family: f"{family}_debug"
    for family in ("llama3", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3")
}
TINY = ("model.dim=64", "model.n_layers=2")
# of a family's recipe, and of the ingredients': a pattern for two layers, and the norms that the
# class of transformers has
OWN = {"deepseek_v3": ("model.latent_norm_eps=1e-6",)}
COMPOSED = {
    "deepseek_v3": ("model.hidden_pattern=[dense, experts]", "model.attention.latent.norm_eps=1e-6")
}


def recipe_named(name, *overrides):
    return resolve_recipe(
        str(shipped_recipes.get_shipped_recipe(name, suffix=".yaml").path),
        overrides,
        environment={},
    ).run


def pair(family, *overrides):
    """The family's recipe and that of ingredients."""
    own = recipe_named(FAMILIES[family], *overrides, *OWN.get(family, ()))
    return own, recipe_named(f"decoder_{family}_debug", *overrides, *COMPOSED.get(family, ()))


def model_of(recipe):
    model = build_model(recipe, get_precision("float32", "float32"))
    materialize_and_init(model, device=torch.device("cpu"), seed=3)
    for name, parameter in model.named_parameters():
        if "norm" in name or parameter.dim() == 1:
            parameter.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recipe_of_ingredients_gives_the_familys_logits_and_gradients_bit_for_bit(family):
    own, composed = pair(family, "model.n_layers=2")
    theirs, ours = model_of(own), model_of(composed)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    ids = torch.randint(2048, (2, 96), generator=torch.Generator().manual_seed(1))
    documents = torch.arange(96)[None].expand(2, -1) // 40
    positions = torch.arange(7, 103)[None]
    for given in ((ids,), (ids, positions, documents)):
        expected, logits = theirs(*given), ours(*given)
        assert expected.std() > 0.1
        assert torch.equal(logits, expected)
    expected.logsumexp(-1).mean().backward()
    logits.logsumexp(-1).mean().backward()
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is None or torch.equal(
            ours.get_parameter(name).grad, parameter.grad
        ), name


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_known_before_a_model_is_built_is_the_familys(family):
    own, composed = (
        recipe_named(FAMILIES[family]).model,
        recipe_named(f"decoder_{family}_debug").model,
    )
    assert composed.parameter_shapes() == own.parameter_shapes()
    assert composed.buffer_shapes() == own.buffer_shapes()
    assert count_active_parameters(composed) == count_active_parameters(own)
    assert flops_per_token(composed, 128) == flops_per_token(own, 128)
    for asked in (
        "layer_activation_elements",
        "kv_dim",
        "head_counts",
        "get_hidden_dims",
        "module_names",
        "count_routed_experts",
        "model_dim",
    ):
        assert getattr(composed, asked)() == getattr(own, asked)(), asked


@pytest.mark.parametrize("family", FAMILIES)
def test_the_class_of_transformers_is_found_and_its_config_json_read_back(family, tmp_path):
    own, composed = (recipe.model for recipe in pair(family, *TINY))
    theirs, ours = (load_family_module(type(config), "huggingface") for config in (own, composed))
    assert composed.export_problems() == []
    written = ours.to_huggingface_config(composed, "float32")
    assert written == theirs.to_huggingface_config(own, "float32")
    state = model_of(pair(family, *TINY)[1]).state_dict()
    exported, expected = ours.to_huggingface(composed, state), theirs.to_huggingface(own, state)
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], expected[name]) for name in expected)
    back = ours.from_huggingface(composed, exported)
    assert all(torch.equal(back[name], state[name]) for name in back if "expert_bias" not in name)
    sizes = type(composed).read_huggingface_sizes(written)
    for field in ("dim", "n_kv_heads", "head_dim", "norm_eps", "tie_word_embeddings"):
        assert sizes[field] == getattr(composed, field), field


@pytest.mark.parametrize("family", FAMILIES)
def test_flavor_auto_reads_the_ingredients_from_config_json(family, tmp_path):
    composed = pair(family, "model.n_layers=2")[1].model
    content = load_family_module(type(composed), "huggingface").to_huggingface_config(
        composed, "float32"
    )
    (tmp_path / "config.json").write_text(json.dumps(content))
    read = recipe_named(
        "llama3_debug", f"model={{name: decoder, flavor: auto, hf_assets_path: {tmp_path}}}"
    ).model
    assert read.parameter_shapes() == composed.parameter_shapes()
    for field in ("theta", "pairs", "pattern"):
        assert getattr(read.rope, field) == getattr(composed.rope, field), field
    for section in ("moe", "hidden_pattern", "norm", "post_norms", "logit_soft_cap"):
        assert getattr(read, section) == getattr(composed, section), section
    for field in ("qk_norm", "bias", "sinks", "window", "window_pattern", "soft_cap", "latent"):
        assert getattr(read.attention, field) == getattr(composed.attention, field), field


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_opens_what_is_exported(family, tmp_path):
    composed = pair(family, *TINY)[1]
    model, module = model_of(composed), load_family_module(type(composed.model), "huggingface")
    save_file(
        module.to_huggingface(composed.model, model.state_dict()),
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "config.json").write_text(
        json.dumps(module.to_huggingface_config(composed.model, "float32"))
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(2048, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (model(ids) - theirs(ids).logits).abs().max() < 1e-5


def test_halves_of_a_llama_are_not_reordered():
    composed = recipe_named("decoder_llama3_debug", *TINY, "model.rope.pairs=halves")
    state = model_of(composed).state_dict()
    module = load_family_module(type(composed.model), "huggingface")
    exported = module.to_huggingface(composed.model, state)
    assert torch.equal(
        exported["model.layers.0.self_attn.q_proj.weight"], state["layers.0.attention.wq.weight"]
    )
    assert all(
        torch.equal(tensor, state[name])
        for name, tensor in module.from_huggingface(composed.model, exported).items()
    )


def test_ingredients_that_no_class_has_are_named_and_not_exported():
    composed = recipe_named(
        "decoder_qwen3_debug", *TINY, "model.attention.sinks=true", "model.logit_soft_cap=30"
    )
    problems = composed.model.export_problems()
    assert [problem.path for problem in problems] == [
        ("model", "logit_soft_cap"),
        ("model", "attention", "sinks"),
    ]
    assert "Qwen3 is nearest, with logit_soft_cap null, but it is 30.0" in problems[0].message
    with pytest.raises(ProblemsFound):
        load_family_module(type(composed.model), "huggingface").to_huggingface(composed.model, {})


def test_a_config_json_that_no_family_reads_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(
        ProblemsFound,
        match="model_type is 'gpt2', but model decoder reads deepseek_v3, gpt_oss, llama, "
        "qwen3 or qwen3_moe",
    ):
        recipe_named(
            "llama3_debug", f"model={{name: decoder, flavor: auto, hf_assets_path: {tmp_path}}}"
        )
    assert Path(tmp_path).exists()
