"""Adapters with magnitudes: what they compute, begin with and become in peft's files."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.components.converters.test_lora import CPU, LLAMA, MIXTURE, SEQ_LEN, adapted, tokens
from titanrun.components.checkpoints.adapter_weights import merge_adapters, split_adapters
from titanrun.components.checkpoints.huggingface import write_hf_folder
from titanrun.components.converters.config import LoraConfig, QloraConfig
from titanrun.components.converters.lora import DoraMixin, reset_magnitudes
from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.optimizers.config import AdamWConfig
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.llama3 import huggingface
from titanrun.training.preference_inputs import disable_adapters
from titanrun.worker.build.build_model import materialize_and_init, named_trainable_parameters
from titanrun.worker.weights.peft_adapters import build_peft_config, read_adapters, write_adapters

# of transformers, which peft asks in its old words
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)
DORA = LoraConfig(rank=4, alpha=8.0, magnitude=True, target_modules=("wq", "wo", "w2", "output"))


def with_weights(config: Any = DORA) -> nn.Module:
    """A model whose adapters have been trained."""
    model, _ = adapted(config)
    materialize_and_init(model, device=CPU, seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, weight in named_trainable_parameters(model):
        if name.endswith("lora_b"):
            weight.data.normal_(0, 0.05, generator=generator)
        elif name.endswith("lora_magnitude"):
            weight.data.mul_(torch.rand(weight.shape, generator=generator) + 0.5)
    return model.eval()


def plain_model(state: dict[str, Tensor]) -> nn.Module:
    """The model without adapters and with these weights."""
    model: Any = LLAMA.load_builder()(LLAMA, seq_len=SEQ_LEN).eval()
    model.load_state_dict(state)
    model.rope_table = model.build_rope_cache(CPU)
    return cast(nn.Module, model)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The frozen weights as transformers reads them."""
    weights, _ = split_adapters(with_weights().state_dict())
    config = huggingface.to_huggingface_config(LLAMA, "float32")
    write_hf_folder(tmp_path / "base", huggingface.to_huggingface(LLAMA, weights), config)
    return tmp_path / "base"


def test_steps_and_gradients_are_those_of_peft_from_its_files_to_its_files(
    base: Path, tmp_path: Path
) -> None:
    model = with_weights()
    write_adapters(tmp_path / "start", split_adapters(model.state_dict())[1], DORA, LLAMA)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "start", is_trainable=True
    )
    # eps is so large that rounding of small gradients does not decide
    settings: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.0, "eps": 1e-4}
    optimizers = (
        build_adamw(
            AdamWConfig(**settings, beta2=0.999), parameters=named_trainable_parameters(model)
        ),
        torch.optim.AdamW(
            [weight for weight in theirs.parameters() if weight.requires_grad], **settings
        ),
    )
    labels = tokens().roll(1)
    for step in range(3):
        losses = []
        for run, optimizer in zip((model, theirs), optimizers, strict=True):
            made = run(tokens())
            logits = made if isinstance(made, Tensor) else made.logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        if step == 0:
            check_magnitude_gradients(model, theirs)
        for optimizer in optimizers:
            optimizer.step()
    theirs.save_pretrained(str(tmp_path / "end"), save_embedding_layers=False)
    found = read_adapters(tmp_path / "end", DORA, LLAMA, adapted(DORA)[1].converted)
    adapters = split_adapters(model.state_dict())[1]
    assert found.keys() == adapters.keys()
    for name, weight in adapters.items():
        assert (found[name] - weight).norm() <= 1e-6 * weight.norm(), name


def check_magnitude_gradients(model: nn.Module, theirs: nn.Module) -> None:
    """Holds the gradients of magnitudes whose rows are not permuted against peft's."""
    given = dict(theirs.named_parameters())
    for layer in range(2):
        ours = model.get_parameter(f"layers.{layer}.feed_forward.w2.lora_magnitude").grad
        (wanted,) = (
            weight.grad
            for name, weight in given.items()
            if f"layers.{layer}.mlp.down_proj.lora_magnitude" in name
        )
        assert ours is not None and wanted is not None
        assert (ours - wanted).norm() <= 1e-6 * wanted.norm()


def test_what_peft_saved_first_is_read(tmp_path: Path, base: Path) -> None:
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        PeftConfig(r=2, lora_alpha=8, target_modules=["q_proj", "o_proj"], use_dora=True),
    )
    theirs.save_pretrained(str(tmp_path / "adapter"))
    dora = LoraConfig(rank=2, alpha=8.0, target_modules=("wq", "wo"), magnitude=True)
    model, report = adapted(dora)
    materialize_and_init(model, device=CPU, seed=0)
    found = read_adapters(tmp_path / "adapter", dora, LLAMA, report.converted)
    for name, weight in found.items():
        if name.endswith("lora_magnitude"):
            assert torch.allclose(weight, model.get_parameter(name), rtol=1e-6)
    plain = LoraConfig(rank=2, alpha=8.0, target_modules=("wq", "wo"))
    with pytest.raises(ProblemsFound, match="has use_dora: true"):
        read_adapters(tmp_path / "adapter", plain, LLAMA, report.converted)


def test_biases_are_those_of_peft() -> None:
    torch.manual_seed(0)
    parent = nn.Sequential(nn.Linear(6, 4))
    theirs: Any = get_peft_model(
        nn.Sequential(nn.Linear(6, 4)),
        PeftConfig(r=2, lora_alpha=3, target_modules=["0"], use_dora=True),
    )
    config = LoraConfig(rank=2, alpha=3.0, magnitude=True)
    config.load_builder()(config, model=parent, shards=1)
    linear: Any = parent[0]
    for weight in linear.parameters():
        weight.data.normal_()
    layer: Any = theirs.base_model.model.get_submodule("0")
    layer.base_layer.load_state_dict(
        {name: linear.get_parameter(name).data for name in ("weight", "bias")}
    )
    layer.lora_A["default"].weight.data = linear.lora_a.data.clone()
    layer.lora_B["default"].weight.data = linear.lora_b.data.clone()
    layer.lora_magnitude_vector["default"].weight.data = linear.lora_magnitude.data.clone()
    x = torch.randn(5, 6)
    assert torch.allclose(linear(x), theirs(x), rtol=1e-6, atol=1e-6)


def test_the_first_step_uses_the_weights_as_they_were_loaded() -> None:
    model, _ = adapted(DORA)
    materialize_and_init(model, device=CPU, seed=0)
    other, _ = split_adapters(with_weights().state_dict())
    other = {name: 3 * weight + 0.01 for name, weight in other.items()}
    model.load_state_dict(other, strict=False)
    reset_magnitudes(model)
    assert torch.allclose(
        model.eval()(tokens()), plain_model(other)(tokens()), rtol=1e-6, atol=1e-6
    )


def test_merged_and_disabled_adapters_give_plain_models() -> None:
    model = with_weights()
    state = model.state_dict()
    merged = plain_model(merge_adapters(state, scale=DORA.scale))
    assert torch.allclose(merged(tokens()), model(tokens()), rtol=1e-4, atol=1e-5)
    with disable_adapters(model):
        assert torch.equal(model(tokens()), plain_model(split_adapters(state)[0])(tokens()))


def test_magnitudes_of_quantized_matrices_are_those_of_the_rounded_ones() -> None:
    model = with_weights(QloraConfig(magnitude=True, block_size=32))
    linear: Any = model.get_submodule("layers.0.attention.wq")
    assert isinstance(linear, DoraMixin)
    linear.reset_magnitude()
    rounded: Tensor = linear.weight.dequantize()
    assert torch.equal(linear.lora_magnitude, rounded.norm(dim=1))


def test_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="which has no dropout"):
        LoraConfig(magnitude=True, dropout=0.1)


def test_modules_that_peft_takes_for_experts_are_not_written() -> None:
    with pytest.raises(ProblemsFound, match="peft has no magnitudes for"):
        build_peft_config(DORA, ["model.layers.0.mlp.gate_proj"], [], MIXTURE)


def test_nothing_is_allocated_before_the_weights_are() -> None:
    with init_on_meta_device():
        model = LLAMA.load_builder()(LLAMA, seq_len=SEQ_LEN)
    DORA.load_builder()(DORA, model=model, shards=1)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
