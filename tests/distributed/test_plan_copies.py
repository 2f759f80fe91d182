"""What `titanrun plan` counts of further models is what the ranks of a real run keep of them."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.distributed.ranks import train
from titanrun.cli.plan import find_teacher_model
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.memory_estimate import estimate_memory
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.rl.weight_sync.in_process_transport import InProcessTransport
from titanrun.training.loop import TrainLoop
from titanrun.worker.commands.measure_memory import measure_rank_memory

SHORT = (
    *("training.steps=3", "validation.enable=false", "lr_scheduler.warmup_steps=0"),
    *("training.local_batch_size=2", "training.global_batch_size=auto", "training.seq_len=64"),
    *("model.n_layers=2", "training.mixed_precision_param=bfloat16"),
)
COPIES = ("weights", "frozen reference", "teacher", "generator", "published weights")
DPO = ("loss=dpo", "tokenizer=tiny", "model.attention={mask: block_causal}")
RL = (
    *("kind=rl", "tokenizer=characters", "training.dataset={name: string_task, count: 64}"),
    "model.attention={mask: block_causal}",
)
ROLLOUT = (
    "rewards: [exact_match], rollout: {prompts_per_step: 2, samples_per_prompt: 2, "
    "drop_zero_variance: false}, sampling: {max_new_tokens: 2}, validation: {samples: 2}"
)
DISTILLATION = ("loss={name: distillation, teacher: TEACHER}",)
LORA = "converters=[{name: lora, rank: 4}]"


def count_bytes(trainer: TrainLoop) -> dict[str, int]:
    """Count the bytes of all parameters of this process, and of published weights."""
    # frozen objects are not listed
    gc.unfreeze()
    found = gc.get_objects()
    tensors = [item for item in found if issubclass(type(item), Tensor)]
    parameters = {id(item): item for item in tensors if isinstance(item, nn.Parameter)}
    published = [
        tensor
        for item in found
        if type(item) is InProcessTransport
        for version in item.list_versions()
        for _, tensor in item.pull(version)
    ]
    return {
        "models": sum(map(count_local_bytes, parameters.values())),
        "published": sum(map(count_local_bytes, published)),
    }


def count_local_bytes(tensor: Tensor) -> int:
    """Count the bytes of a tensor's part on this rank, without gathered weights that are freed."""
    local = to_local(tensor)
    is_freed = local.untyped_storage().nbytes() == 0
    return 0 if is_freed else local.numel() * local.element_size()


def plan_bytes(resolved: Path, ranks: int) -> dict[str, int]:
    """Return the plan's bytes by item."""
    run = load_resolved(resolved)
    parts = measure_rank_memory(run, ranks)
    dims = resolve_parallel_dims(run.parallelism, ranks)
    assert dims is not None
    layers = [ModuleSize(*sizes) for sizes in parts["layers"]]
    ends = [ModuleSize(*parts[name]) for name in ("embedding", "head")]
    layout = PlanLayout(run, dims, ends[0], layers, ends[1], find_teacher_model(run))
    return {item.name: item.bytes for item in estimate_memory(layout, DEVICES["h100"])}


CASES: list[Any] = [
    pytest.param(1, DPO, ["frozen reference"], id="dpo"),
    pytest.param(1, (*DPO, LORA), [], id="dpo_lora"),
    pytest.param(2, DPO, ["frozen reference"], id="dpo_fsdp2", marks=pytest.mark.slow),
    pytest.param(1, DISTILLATION, ["teacher"], id="distillation"),
    pytest.param(2, DISTILLATION, ["teacher"], id="distillation_fsdp2", marks=pytest.mark.slow),
    pytest.param(
        1,
        (*RL, f"rl={{{ROLLOUT}, reference: frozen_copy}}"),
        ["frozen reference", "generator", "published weights"],
        id="rl",
    ),
    pytest.param(
        2,
        (*RL, f"rl={{{ROLLOUT}}}"),
        ["generator", "published weights"],
        id="rl_fsdp2",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        2,
        (
            *(*RL, "parallelism.tensor_parallel_degree=2"),
            f"rl={{{ROLLOUT}, generator: {{name: native, tensor_parallel: true}}}}",
        ),
        ["generator", "published weights"],
        id="rl_tp2",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("nproc", "overrides", "copies"), CASES)
def test_a_rank_keeps_the_further_models_that_the_plan_counts(
    nproc: int, overrides: tuple[str, ...], copies: list[str], tmp_path: Path
) -> None:
    """Row A6: DPO's frozen reference and RL's generator were not counted."""
    pairs = tmp_path / "pairs.jsonl"
    pair = {"prompt": "Say: a goat", "chosen": "a goat", "rejected": "an owl"}
    pairs.write_text(f"{json.dumps(pair)}\n" * 4)
    if overrides[0] == "loss=dpo":
        overrides = (*overrides, f"training.dataset={{name: preference, path: {pairs}}}")
    overrides = tuple(text.replace("TEACHER", f"{tmp_path}/teacher") for text in overrides)
    if "distillation" in overrides[0]:
        sizes = {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 3}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(vocab_size=2048, tie_word_embeddings=False, **sizes, **heads)
        LlamaForCausalLM(config).save_pretrained(tmp_path / "teacher")
    trained = train(nproc, [*SHORT, *overrides], folder=tmp_path, look=count_bytes)
    planned = plan_bytes(tmp_path / "resolved.yaml", nproc)
    assert [name for name in COPIES if name in planned] == ["weights", *copies]
    fullest = max(trained.build_mask, key=lambda seen: sum(seen.values()))
    models = sum(planned.get(name, 0) for name in COPIES[:4])
    if "working copies" in planned:  # one rank computes with a bf16 copy of each trained weight
        models += planned["gradients"] // 2
    assert models == pytest.approx(fullest["models"], rel=0.01)
    assert planned.get("published weights", 0) == pytest.approx(fullest["published"], rel=0.01)
