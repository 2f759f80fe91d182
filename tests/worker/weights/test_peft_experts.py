"""Adapters of stacked experts in peft's files: peft gives the same logits, and what is read back
are the same bits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.models.conftest import maker
from titanrun.components.checkpoints.adapter_weights import split_adapters
from titanrun.components.checkpoints.huggingface import write_hf_folder
from titanrun.components.converters.config import LoraConfig
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.llama4.config import Llama4Config
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.spec.family import load_family_module
from titanrun.worker.build.build_model import materialize_and_init, named_trainable_parameters
from titanrun.worker.weights.peft_adapters import read_adapters, write_adapters

# of transformers, which peft asks in its old words
# and of peft, which looks for the parameters of rank_pattern among its modules
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(
        "ignore:The following (rank|alpha)_pattern keys did not match:RuntimeWarning"
    ),
]
SIZES = {"vocab_size": 64, "dim": 32, "n_layers": 2}
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8}
MOE = {"num_experts": 4, "top_k": 2, "hidden_dim": 24}
QWEN3: Any = maker(Qwen3Config, {})("debugmodel_moe", **SIZES, **HEADS, moe=MOE)
SIGMOID = {**MOE, "num_shared_experts": 1, "score_func": "sigmoid"}
FAMILIES: dict[str, Any] = {
    "qwen3": lambda: QWEN3,
    "deepseek_v3": lambda: maker(DeepseekV3Config, {})(
        "debugmodel", **SIZES, n_heads=4, moe=SIGMOID, latent_norm_eps=1e-6
    ),
    "gpt_oss": lambda: maker(GptOssConfig, {})("debugmodel", **SIZES, **HEADS, moe=MOE),
    "llama4": lambda: maker(Llama4Config, {})("debugmodel", **SIZES),
}


def tokens() -> Tensor:
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(2))


def with_adapters(lora: LoraConfig, config: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """A model whose adapters are no longer zero, and what has one."""
    with init_on_meta_device():
        model = config.load_builder()(config, seq_len=16)
    taken = lora.load_builder()(lora, model=model, shards=1).converted
    materialize_and_init(model, device=torch.device("cpu"), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, weight in named_trainable_parameters(model):
        if name.endswith("lora_b"):
            weight.data.normal_(0, 0.2, generator=generator)
    return model.eval(), taken


def base_of(model: nn.Module, config: Any, folder: Path) -> Any:
    """The frozen weights in transformers' class."""
    module = load_family_module(type(config), "huggingface")
    weights, _ = split_adapters(model.state_dict())
    write_hf_folder(
        folder,
        module.to_huggingface(config, weights),
        module.to_huggingface_config(config, "float32"),
    )
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def in_peft(lora: LoraConfig, config: Any, folder: Path) -> tuple[nn.Module, tuple[str, ...], Any]:
    """A model with adapters, what has one, and peft's of what was written."""
    model, taken = with_adapters(lora, config)
    base = base_of(model, config, folder / "base")
    with torch.no_grad():
        before = base(tokens()).logits
    write_adapters(folder / "adapter", split_adapters(model.state_dict())[1], lora, config)
    theirs = PeftModel.from_pretrained(base, folder / "adapter").eval()
    with torch.no_grad():
        assert not torch.allclose(theirs(tokens()).logits, before, atol=1e-3)
    return model, taken, theirs


EVERY = ("wq", "wo", "w1", "w2", "w3", "experts")
CASES = [
    ("qwen3", ("wq", "experts")),
    ("qwen3", ("experts",)),
    ("qwen3", ("w2",)),
    ("qwen3", ("w1",)),
    ("qwen3", ("w2", "w3")),
    ("deepseek_v3", EVERY),
    ("deepseek_v3", ("layers.0.feed_forward.*", "layers.1.moe.shared_experts.*")),
    ("gpt_oss", ("wq", "experts")),
    ("gpt_oss", ("mlp1_weight",)),
    ("llama4", EVERY),
]


@pytest.mark.parametrize(("family", "targets"), CASES)
def test_peft_gives_the_same_logits_and_what_is_read_back_are_the_same_bits(
    tmp_path: Path, family: str, targets: tuple[str, ...]
) -> None:
    config, lora = (
        FAMILIES[family](),
        LoraConfig(rank=3, alpha=6.0, dropout=0.1, target_modules=targets),
    )
    model, taken, theirs = in_peft(lora, config, tmp_path)
    with torch.no_grad():
        assert torch.allclose(theirs(tokens()).logits, model(tokens()), rtol=0, atol=1e-5)
    adapters, found = (
        split_adapters(model.state_dict())[1],
        read_adapters(tmp_path / "adapter", lora, config, taken),
    )
    assert found.keys() == adapters.keys()
    assert all(torch.equal(found[name], adapters[name]) for name in adapters)


def test_one_adapter_of_peft_for_gates_and_values_is_the_same_a_for_both(tmp_path: Path) -> None:
    model, _ = with_adapters(LoraConfig(rank=3, alpha=6.0, target_modules=("w3",)), QWEN3)
    settings = PeftConfig(
        r=3,
        lora_alpha=6,
        target_modules=[],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
    )
    theirs = get_peft_model(base_of(model, QWEN3, tmp_path / "base"), settings)
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    lora = LoraConfig(rank=3, alpha=6.0, target_modules=("experts",))
    model, taken = with_adapters(lora, QWEN3)
    adapters = read_adapters(tmp_path / "adapter", lora, QWEN3, taken)
    assert torch.equal(
        adapters["layers.1.moe.experts.w1_lora_a"], adapters["layers.1.moe.experts.w3_lora_a"]
    )
    model.load_state_dict(adapters, strict=False)
    with torch.no_grad():
        assert torch.allclose(theirs.eval()(tokens()).logits, model(tokens()), rtol=0, atol=1e-5)


def test_folders_of_other_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    lora = LoraConfig(rank=3, alpha=6.0, target_modules=("experts",))
    model, taken = with_adapters(lora, QWEN3)
    folder = tmp_path / "adapter"
    write_adapters(folder, split_adapters(model.state_dict())[1], lora, QWEN3)
    gates = [name for name in taken if not name.endswith(".w3")]
    values = {
        "has no adapter for model.layers.0.self_attn.q_proj, which is layers.0.attention.wq here": [
            *taken,
            "layers.0.attention.wq",
        ],
        "has rank 6 and alpha 12.0 for model.layers.0.mlp.experts.gate_up_proj": gates,
        "also adapts model.layers.0.mlp.experts.lora_A.weight": [
            name for name in taken if not name.endswith(".w2")
        ],
    }
    for said, modules in values.items():
        with pytest.raises(ProblemsFound, match=said):
            read_adapters(folder, lora, QWEN3, modules)
    settings = json.loads((folder / "adapter_config.json").read_text())
    for change, said in (
        (
            {"alpha_pattern": {}},
            "has rank 6 and alpha 6.0 for model.layers.0.mlp.experts.gate_up_proj",
        ),
        (
            {"target_parameters": ["experts.down_proj"]},
            "has no adapter for model.layers.0.mlp.experts.gate_up_proj",
        ),
        ({"rank_pattern": {"[": 3}}, "rank_pattern or alpha_pattern of the adapter"),
        ({"rank_pattern": [3]}, "adapter_config.json is not in peft's format"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(settings | change))
        with pytest.raises(ProblemsFound, match=said):
            read_adapters(folder, lora, QWEN3, taken)

    (folder / "adapter_config.json").write_text(
        json.dumps(settings | {"rank_pattern": {}, "alpha_pattern": {}})
    )
    with pytest.raises(ProblemsFound, match="gate_up_proj does not fit rank 3 and 4 experts"):
        read_adapters(folder, lora, QWEN3, gates)


def test_what_a_joint_adapter_changes_beyond_the_runs_is_not_lost(tmp_path: Path) -> None:
    lora = LoraConfig(rank=3, alpha=6.0, target_modules=("experts",))
    model, taken = with_adapters(lora, QWEN3)
    folder, stored = tmp_path / "adapter", tmp_path / "adapter" / "adapter_model.safetensors"
    write_adapters(folder, split_adapters(model.state_dict())[1], lora, QWEN3)
    tensors = load_file(stored)
    # gates that see what is the values'
    tensors["base_model.model.model.layers.1.mlp.experts.base_layer.lora_B.weight"][0, -1] = 1.0
    save_file(tensors, stored)
    with pytest.raises(
        ProblemsFound,
        match=r"the adapter of model\.layers\.1\.mlp\.experts\.gate_up_proj changes more",
    ):
        read_adapters(folder, lora, QWEN3, taken)


@pytest.mark.parametrize(
    ("family", "flavor", "change", "said"),
    [
        (
            Qwen3Config,
            "debugmodel_moe",
            {"score_func": "sigmoid"},
            "transformers' Qwen3 does not support moe.score_func",
        ),
        (
            GptOssConfig,
            "debugmodel",
            {"num_experts": 1, "top_k": 1},
            "peft transposes the adapter of a single expert of gpt_oss",
        ),
    ],
)
def test_experts_that_transformers_or_peft_do_not_have_are_not_written(
    tmp_path: Path, family: Any, flavor: str, change: dict[str, Any], said: str
) -> None:
    lora = LoraConfig(rank=3, target_modules=("experts",))
    config: Any = maker(family, {})(flavor, **SIZES, **HEADS, moe={**MOE, **change})
    model, _ = with_adapters(lora, config)
    with pytest.raises(ProblemsFound, match=said):
        write_adapters(tmp_path / "adapter", split_adapters(model.state_dict())[1], lora, config)
    assert not (tmp_path / "adapter").exists()
