"""Adapters: which modules get one, what they compute and begin with, how they are merged, and what
peft makes of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.models.conftest import TINY_LLAMA3, maker
from titanrun.components.checkpoints.adapter_weights import merge_adapters, split_adapters
from titanrun.components.checkpoints.huggingface import write_hf_folder
from titanrun.components.converters.config import Float8LinearConfig, Fp32LmHeadConfig, LoraConfig
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.optimizers.config import AdamWConfig
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.llama3 import huggingface
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.config import ModelConfig
from titanrun.worker.build.build_model import materialize_and_init, named_trainable_parameters
from titanrun.worker.weights.peft_adapters import read_adapters, write_adapters

# of transformers, which peft asks in its old words
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)
CPU = torch.device("cpu")
LLAMA: Any = maker(Llama3Config, {**TINY_LLAMA3, "n_kv_heads": 2})(dim=32)
MIXTURE: Any = maker(Qwen3Config, {})("debugmodel_moe", n_layers=1, tie_word_embeddings=True)
HIDDEN = LLAMA.dense_hidden_dim()
SEQ_LEN = 16


def adapted(
    lora: LoraConfig, config: ModelConfig = LLAMA, *, before: Any = None
) -> tuple[nn.Module, ConversionReport]:
    """A model with adapters on the meta device, and what became of its modules."""
    with init_on_meta_device():
        model = config.load_builder()(config, seq_len=SEQ_LEN)
    if before is not None:
        before.load_builder()(before, model=model, shards=1)
    return model, lora.load_builder()(lora, model=model, shards=1)


def with_weights(lora: LoraConfig, *, seed: int = 0) -> nn.Module:
    """A model whose adapters are no longer zero."""
    model, _ = adapted(lora)
    materialize_and_init(model, device=CPU, seed=seed)
    generator = torch.Generator().manual_seed(1)
    for name, weight in named_trainable_parameters(model):
        if name.endswith("lora_b"):
            weight.data.normal_(0, 0.05, generator=generator)
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(0, 96, (2, SEQ_LEN), generator=torch.Generator().manual_seed(2))


def test_modules_that_are_named_get_adapters_of_the_rank_and_nothing_else_is_trained() -> None:
    model, conversion = adapted(
        LoraConfig(rank=3, target_modules=("wq", "layers.1.feed_forward.*"))
    )
    assert conversion.converted == (
        "layers.0.attention.wq",
        "layers.1.attention.wq",
        *(f"layers.1.feed_forward.{name}" for name in ("w1", "w2", "w3")),
    )
    assert conversion.skipped["layers.0.feed_forward.w1"] == "target_modules does not name it"
    shapes = {name: tuple(weight.shape) for name, weight in named_trainable_parameters(model)}
    assert shapes.keys() == {
        f"{name}.{part}" for name in conversion.converted for part in ("lora_a", "lora_b")
    }
    assert (
        shapes["layers.1.feed_forward.w1.lora_a"],
        shapes["layers.1.feed_forward.w1.lora_b"],
    ) == ((3, 32), (HIDDEN, 3))


def test_with_null_every_linear_module_is_adapted_but_routers_experts_tied_and_fp32_heads() -> None:
    every = LoraConfig(target_modules=None)
    _, conversion = adapted(every)
    assert len(conversion.converted) == 2 * 7 + 1
    assert adapted(LoraConfig(target_modules=()))[1].converted == ()
    _, conversion = adapted(every, MIXTURE)
    assert conversion.converted == tuple(
        f"layers.0.attention.{name}" for name in ("wq", "wk", "wv", "wo")
    )
    assert conversion.skipped == {
        "layers.0.moe.experts": "experts get adapters only if target_modules names them",
        "layers.0.moe.router.gate": "it is a router, and readers of adapters do not support it",
        "output": "it shares its matrix with tok_embeddings",
    }
    _, conversion = adapted(every, before=Fp32LmHeadConfig())
    assert conversion.skipped == {"output": "it computes in another dtype than the rest"}


def test_without_targets_the_output_head_and_experts_have_no_adapters() -> None:
    _, conversion = adapted(LoraConfig())
    assert len(conversion.converted) == 2 * 7
    assert conversion.skipped == {"output": "it is the output head"}
    _, conversion = adapted(LoraConfig(target_modules=("all-linear", "output")))
    assert len(conversion.converted) == 2 * 7 + 1
    _, conversion = adapted(LoraConfig(), MIXTURE)
    assert conversion.skipped["layers.0.moe.experts"] == (
        "experts get adapters only if target_modules names them"
    )


def test_all_linear_adapts_the_modules_that_peft_adapts(tmp_path: Path, base: Path) -> None:
    model = with_weights(LoraConfig())
    adapters = split_adapters(model.state_dict())[1]
    write_adapters(tmp_path / "adapter", adapters, LoraConfig(), LLAMA)
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        PeftConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=8, lora_alpha=16),
    )
    theirs.save_pretrained(tmp_path / "theirs")
    ours, wanted = (
        load_file(tmp_path / folder / "adapter_model.safetensors")
        for folder in ("adapter", "theirs")
    )
    assert {name: one.shape for name, one in ours.items()} == {
        name: one.shape for name, one in wanted.items()
    }


def test_adapters_stand_beside_modules_in_float8() -> None:
    model, conversion = adapted(
        LoraConfig(target_modules=("wq",)), before=Float8LinearConfig(emulate=True)
    )
    assert type(model.get_submodule(conversion.converted[0])).__name__ == "LoraFloat8Linear"


def test_first_weights_are_kaimings_and_zero_and_follow_from_seed_and_name() -> None:
    model, few = (adapted(LoraConfig(target_modules=targets))[0] for targets in (None, ("wo",)))
    for each in (model, few):
        materialize_and_init(each, device=CPU, seed=7)
    a, b = model.layers["1"].feed_forward.w2.lora_a, model.layers["1"].feed_forward.w2.lora_b
    # torch's own: kaiming_uniform_ with a slope of sqrt(5), whose fan in is the hidden width
    wanted = torch.empty_like(a)
    generator = WeightInitRng(7, CPU, model)
    generator.seed_for_parameter(a)
    nn.init.kaiming_uniform_(wanted, a=5**0.5, generator=generator)
    assert torch.allclose(a, wanted, rtol=1e-6, atol=0)
    assert not b.any()
    assert torch.equal(model.layers["0"].attention.wo.lora_a, few.layers["0"].attention.wo.lora_a)


def test_an_adapter_adds_alpha_over_rank_times_b_a_x() -> None:
    torch.manual_seed(0)
    with init_on_meta_device():
        parent = nn.Sequential(nn.Linear(6, 4))
    LoraConfig(rank=2, alpha=3.0).load_builder()(
        LoraConfig(rank=2, alpha=3.0), model=parent, shards=1
    )
    linear = parent.to_empty(device=CPU).double()[0]
    for weight in linear.parameters():
        weight.data.normal_()
    x = torch.randn(5, 6, dtype=torch.float64)
    wanted = x @ linear.weight.T + linear.bias + 3.0 / 2 * (x @ linear.lora_a.T @ linear.lora_b.T)
    assert torch.allclose(linear(x), wanted, rtol=1e-12)


def test_dropout_leaves_out_inputs_of_the_adapter_alone_and_only_in_training() -> None:
    model = with_weights(LoraConfig(dropout=0.5, target_modules=("output",)))
    linear, x = model.output, torch.ones(64, 32)
    assert torch.equal(linear(x), linear(x))
    linear.train()
    assert not torch.equal(linear(x), linear(x))
    linear.lora_b.data.zero_()
    assert torch.equal(linear(x), x @ linear.weight.T)


def test_merged_weights_give_the_same_bits_where_nothing_is_rounded_and_nearly_the_same_elsewhere() -> (  # noqa: E501
    None
):
    lora = LoraConfig(rank=2, alpha=4.0, target_modules=None)
    model = with_weights(lora)
    linear, name = model.output, "output"
    generator = torch.Generator().manual_seed(3)
    for weight in (linear.weight, linear.lora_a, linear.lora_b):
        # eighths of small whole numbers: fp32 holds every product and sum
        weight.data = torch.randint(-8, 9, weight.shape, generator=generator) / 8
    x = torch.randint(-8, 9, (10, 32), generator=generator) / 8
    weights = merge_adapters(
        {f"{name}.{key}": weight.detach() for key, weight in linear.named_parameters()},
        scale=lora.scale,
    )
    assert list(weights) == ["output.weight"]
    assert torch.equal(nn.functional.linear(x, weights["output.weight"]), linear(x))
    plain = LLAMA.load_builder()(LLAMA, seq_len=SEQ_LEN).eval()
    plain.load_state_dict(merge_adapters(with_weights(lora).state_dict(), scale=lora.scale))
    plain.rope_table = plain.build_rope_cache(CPU)
    assert torch.allclose(plain(tokens()), with_weights(lora)(tokens()), rtol=1e-4, atol=1e-5)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The frozen weights as transformers reads them."""
    weights, _ = split_adapters(with_weights(LoraConfig()).state_dict())
    config = huggingface.to_huggingface_config(LLAMA, "float32")
    write_hf_folder(tmp_path / "base", huggingface.to_huggingface(LLAMA, weights), config)
    return tmp_path / "base"


@pytest.mark.parametrize("rank_stabilized", [False, True])
@pytest.mark.parametrize("targets", [None, ("wq", "wk", "w2", "output")])
def test_peft_reads_what_was_written_and_gives_the_same_logits(
    tmp_path: Path, base: Path, targets: Any, rank_stabilized: bool
) -> None:
    lora = LoraConfig(rank=4, alpha=12.0, target_modules=targets, rank_stabilized=rank_stabilized)
    model = with_weights(lora)
    adapters = split_adapters(model.state_dict())[1]
    write_adapters(tmp_path / "adapter", adapters, lora, LLAMA)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    ).eval()
    with torch.no_grad():
        assert torch.allclose(theirs(tokens()).logits, model(tokens()), rtol=1e-4, atol=1e-5)
    modules = [name.removesuffix(".lora_a") for name in adapters if name.endswith(".lora_a")]
    found = read_adapters(tmp_path / "adapter", lora, LLAMA, modules)
    assert found.keys() == adapters.keys()
    assert all(torch.equal(found[name], adapters[name]) for name in adapters)


@pytest.mark.parametrize("rank_stabilized", [False, True])
def test_steps_are_those_of_peft(base: Path, tmp_path: Path, rank_stabilized: bool) -> None:
    """Three steps of AdamW on the same adapters, one rate for A and another for B, as in LoRA+.

    eps is so large that rounding of small gradients does not decide.
    """
    lora = LoraConfig(
        rank=4, alpha=8.0, target_modules=("wq", "wo", "w2"), rank_stabilized=rank_stabilized
    )
    model = with_weights(lora)
    write_adapters(tmp_path / "start", split_adapters(model.state_dict())[1], lora, LLAMA)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "start", is_trainable=True
    )
    ours_optimizer = build_adamw(
        AdamWConfig(lr=1e-3, beta2=0.999, weight_decay=0.0, eps=1e-4, lora_plus_ratio=16.0),
        parameters=named_trainable_parameters(model),
    )
    assert theirs.peft_config["default"].use_rslora is rank_stabilized
    theirs_optimizer = create_loraplus_optimizer(
        theirs, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16.0, weight_decay=0.0, eps=1e-4
    )
    labels = tokens().roll(1)
    for _ in range(3):
        losses = []
        for run, optimizer in ((model, ours_optimizer), (theirs, theirs_optimizer)):
            made = run(tokens())
            logits = made if isinstance(made, Tensor) else made.logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    theirs.save_pretrained(tmp_path / "end")
    found = read_adapters(tmp_path / "end", lora, LLAMA, adapted(lora)[1].converted)
    for name, weight in split_adapters(model.state_dict())[1].items():
        assert (found[name] - weight).norm() <= 1e-6 * weight.norm(), name
    assert len(ours_optimizer.param_groups) == 2
    assert [group["lr"] for group in ours_optimizer.param_groups] == [1e-3, 16e-3]


def test_another_scale_in_the_folder_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rank": 4, "alpha": 8.0, "target_modules": ("wq",)}
    plain, stabilized = LoraConfig(**settings), LoraConfig(**settings, rank_stabilized=True)
    assert stabilized.scale == 4.0
    adapters = split_adapters(with_weights(stabilized).state_dict())[1]
    taken = adapted(stabilized)[1].converted
    for written, read in ((stabilized, plain), (plain, stabilized)):
        folder = tmp_path / str(written.rank_stabilized)
        write_adapters(folder, adapters, written, LLAMA)
        with pytest.raises(ProblemsFound, match="has use_rslora"):
            read_adapters(folder, read, LLAMA, taken)


def test_what_peft_saved_is_read_for_the_modules_that_it_adapts_and_for_no_others(
    tmp_path: Path, base: Path
) -> None:
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        PeftConfig(r=2, lora_alpha=8, target_modules=["q_proj", "o_proj"]),
    )
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.05)
    theirs.save_pretrained(tmp_path / "adapter")
    lora = LoraConfig(rank=2, alpha=8.0, target_modules=("wq", "wo"))
    model = with_weights(lora)
    taken = adapted(lora)[1].converted
    model.load_state_dict(read_adapters(tmp_path / "adapter", lora, LLAMA, taken), strict=False)
    with torch.no_grad():
        assert torch.allclose(theirs.eval()(tokens()).logits, model(tokens()), rtol=1e-4, atol=1e-5)
    others = {
        "also adapts model.layers": taken[:1],
        "has no adapter for lm_head, which is output here": [*taken, "output"],
    }
    for said, modules in others.items():
        with pytest.raises(ProblemsFound, match=said):
            read_adapters(tmp_path / "adapter", lora, LLAMA, modules)
    with pytest.raises(ProblemsFound, match="has r: 2, but the run's adapters have 4") as found:
        read_adapters(tmp_path / "adapter", LoraConfig(rank=4, alpha=8.0), LLAMA, taken)
    assert str(found.value.problems[0].hint).startswith("add 'converters=[{name: lora, rank: 2")
