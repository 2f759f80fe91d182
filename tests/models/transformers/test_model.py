"""A class of transformers within titanrun against the same class called by hand, on random
weights."""

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.meta_device import allocate_model, init_on_meta_device
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.models.shared.spec.flops import (
    count_active_parameters,
    count_parameters,
    flops_per_token,
)
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.transformers.model import TransformersModel

HERE = Path(__file__).parent
CPU = torch.device("cpu")
BERT = {
    "model_type": "bert",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def config_of(**written: object) -> TransformersConfig:
    return TransformersConfig.model_validate(
        resolve_model_sizes(TransformersConfig.model_validate(written))
    )


def model_of(config: TransformersConfig, *, seed: int = 0) -> TransformersModel:
    with init_on_meta_device():
        model = TransformersModel(config, seq_len=64)
    allocate_model(model, CPU)
    model.init_weights(WeightInitRng(seed, CPU, model))
    return model.train()


def saved(config: TransformersConfig, model: TransformersModel, folder: Path) -> Path:
    save_file(
        to_huggingface(config, model.state_dict()),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(to_huggingface_config(config, "float32")))
    return folder


@pytest.mark.parametrize(
    ("architecture", "idle"), [("mistral", 0), ("gpt2", 0), ("mixtral", 2 * 2 * 3 * 32 * 48)]
)
def test_loss_gradients_and_counts_are_those_of_the_class_called_by_hand(
    architecture: str, idle: int, tmp_path: Path
) -> None:
    config = config_of(path=str(HERE / f"{architecture}.json"))
    model = model_of(config)
    opened, report = transformers.AutoModelForCausalLM.from_pretrained(
        saved(config, model, tmp_path), output_loading_info=True
    )
    assert not any(report.values())
    tokens = torch.randint(0, 2048, (2, 40), generator=torch.Generator().manual_seed(1))
    logits = model(tokens, torch.arange(40)[None])
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    theirs = opened.train()(input_ids=tokens, labels=tokens)
    theirs.loss.backward()
    torch.testing.assert_close(logits, theirs.logits, atol=0, rtol=0)
    torch.testing.assert_close(loss, theirs.loss)
    back = {name: weight.grad for name, weight in opened.named_parameters()}
    for name, gradient in to_huggingface_gradients(model).items():
        torch.testing.assert_close(gradient, back[name], atol=1e-6, rtol=1e-5)
    count = sum(weight.numel() for weight in opened.parameters())
    assert (count_parameters(config), count_active_parameters(config)) == (count, count - idle)
    looked_up = 0 if model.is_tied else 2048 * 32
    assert flops_per_token(config, 64) == 6 * (count - idle - looked_up) + 6 * 2 * 2 * 32 * 64


def to_huggingface_gradients(model: TransformersModel) -> dict[str, torch.Tensor]:
    names = {id(weight): name for name, weight in model.huggingface_model.named_parameters()}
    assert len(names) == len(list(model.parameters()))
    return {
        names[id(weight)]: weight.grad for weight in model.parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("architecture", ["gpt2", "mixtral"])
def test_weights_go_to_files_of_transformers_and_back(architecture: str) -> None:
    config = config_of(path=str(HERE / f"{architecture}.json"))
    state = model_of(config).state_dict()
    files = to_huggingface(config, state)
    back = from_huggingface(config, files)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    with pytest.raises(ProblemsFound, match="are missing"):
        from_huggingface(config, dict(list(files.items())[1:]))


def test_first_weights_follow_the_seed_and_the_rule_of_the_class() -> None:
    config = config_of(path=str(HERE / "mistral.json"))
    one, same, other = (dict(model_of(config, seed=seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    matrix = "layers.1.mlp.up_proj.weight"
    assert not torch.equal(one[matrix], other[matrix])
    assert not torch.equal(one[matrix], one["layers.0.mlp.up_proj.weight"])
    assert one[matrix].std().item() == pytest.approx(0.02, rel=0.1)
    assert one["norm.weight"].eq(1).all()


def test_a_recipe_says_what_computes_attention() -> None:
    for wanted in ("sdpa", "eager"):
        model = model_of(config_of(path=str(HERE / "mistral.json"), attn_implementation=wanted))
        assert model.huggingface_model.config._attn_implementation == wanted


def test_sizes_of_the_recipe_stand_above_those_of_the_file() -> None:
    config = config_of(path=str(HERE / "gpt2.json"), vocab_size=96, max_seq_len=32)
    shapes = config.parameter_shapes()
    assert shapes["tok_embeddings.weight"] == (96, 32)
    assert shapes["transformer_wpe.weight"] == (32, 32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (BERT, "attends to the tokens that it has to predict"),
        (
            {
                **BERT,
                "model_type": "t5x_of_my_own",
                "auto_map": {"AutoModelForCausalLM": "modeling.Mine"},
            },
            "has no architecture",
        ),
        ({**BERT, "model_type": "vit"}, "has no causal language model"),
        ({**BERT, "model_type": "llama", "num_attention_heads": "four"}, "config.json"),
    ],
)
def test_what_is_no_causal_model_of_transformers_is_a_problem(
    changes: dict[str, object], words: str
) -> None:
    config = config_of(config_json=json.dumps(changes), max_seq_len=64, vocab_size=64)
    with pytest.raises(ProblemsFound) as caught:
        config.parameter_shapes()
    assert words in caught.value.problems[0].message


def test_data_with_positions_needs_a_class_that_takes_them() -> None:
    model = model_of(config_of(path=str(HERE / "mistral.json")))
    model.accepts_positions = False
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model(tokens)
    with pytest.raises(ProblemsFound, match="does not accept positions"):
        model(tokens, torch.arange(4)[None])


def test_a_missing_package_is_a_problem_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(path=str(HERE / "mistral.json"), vocab_size=32)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ProblemsFound) as caught:
        config.parameter_shapes()
    assert caught.value.problems[0].hint == 'pip install "titanrun[transformers]"'
