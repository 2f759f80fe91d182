"""What `titanrun plan` says a rank keeps is what the ranks of a real run keep, within 5%; what it
says layers keep, autograd keeps."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from tests.distributed.ranks import TEXT, train
from titanrun.distributed.activation_checkpoint import SelectiveCheckpointPolicy, find_linear_shapes
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.models.deepseek_v3.model import DeepseekV3
from titanrun.models.llama3.model import Llama3
from titanrun.models.qwen3.model import Qwen3
from titanrun.recipe.plan.activations import compute_layer_activations as kept_of
from titanrun.recipe.plan.memory_estimate import ERROR_BAND
from titanrun.recipe.plan.plan_layout import ZERO_SIZE, PlanLayout
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.loop import TrainLoop

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.05
TP2 = "parallelism.tensor_parallel_degree=2"
PP2 = "parallelism.pipeline_parallel_degree=2"
REPLICAS = "parallelism.data_parallel_replicate_degree=2"
EXPERTS = (
    "model={name: qwen3, flavor: debugmodel_moe, n_layers: 2, moe: {num_experts: 8, top_k: 2, "
    "hidden_dim: 128}}"
)
SHORT = ("training.steps=1", "validation.enable=false", "lr_scheduler.warmup_steps=0")
SLOW = pytest.mark.slow
LAYOUTS: list[Any] = [
    pytest.param(1, [], id="alone", marks=SLOW),
    pytest.param(2, [], id="fsdp2"),
    pytest.param(2, [REPLICAS], id="ddp2", marks=SLOW),
    pytest.param(2, [TP2], id="tp2"),
    pytest.param(2, [TP2, EXPERTS], id="tp2_experts", marks=SLOW),
    pytest.param(3, ["training.global_batch_size=6"], id="fsdp3_uneven", marks=SLOW),
    pytest.param(4, [], id="fsdp4", marks=SLOW),
    pytest.param(4, [REPLICAS], id="hsdp2x2", marks=SLOW),
    pytest.param(4, [TP2], id="fsdp2_tp2", marks=SLOW),
    pytest.param(2, [PP2, "model.tie_word_embeddings=true"], id="pp2_tied", marks=SLOW),
]

DOCUMENTED = re.findall(
    r"^\$ titanrun (plan (?:.*\\\n)*.*)\n((?:.*\n)*?)```$",
    (ROOT / "docs" / "parallelism.md").read_text(),
    re.MULTILINE,
)
FAMILIES = pytest.mark.parametrize(
    ("family", "model"),
    [
        (Llama3, "{name: llama3, flavor: debugmodel}"),
        (Qwen3, "{name: qwen3, flavor: debugmodel}"),
        (Qwen3, "{name: qwen3, flavor: debugmodel_moe, moe: {num_experts: 8, top_k: 2}}"),
        (
            DeepseekV3,
            "{name: deepseek_v3, flavor: debugmodel, n_dense_layers: 0, q_lora_rank: 128}",
        ),
        (DeepseekV3, "{name: deepseek_v3, flavor: debugmodel, n_dense_layers: 6}"),
    ],
    ids=["llama3", "qwen3", "experts", "deepseek_v3", "latent attention"],
)


def kept(trainer: TrainLoop) -> dict[str, int]:
    """Bytes that this rank keeps."""
    optimizer = trainer.engine.optimizer
    weights = [to_local(weight) for weight in trainer.engine.model.parameters()]
    states = [
        to_local(state)
        for held in optimizer.state.values()
        for state in held.values()
        if state.dim()
    ]
    return {"weights": sum(map(nbytes, weights)), "optimizer states": sum(map(nbytes, states))}


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def planned(folder: Path, nproc: int, overrides: list[str]) -> dict[str, Any]:
    """What the command prints for the recipe of the layouts."""
    recipe = folder / "planned.yaml"
    recipe.write_text(TEXT)
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "plan",
        str(recipe),
        "--world-size",
        str(nproc),
        "--json",
        *overrides,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("nproc", "overrides"), LAYOUTS)
def test_a_rank_keeps_what_the_plan_says(nproc: int, overrides: list[str], tmp_path: Path) -> None:
    fullest = max(
        train(nproc, [*SHORT, *overrides], look=kept).build_mask,
        key=lambda seen: sum(seen.values()),
    )
    said = {item["name"]: item["bytes"] for item in planned(tmp_path, nproc, overrides)["memory"]}
    for name, measured in fullest.items():
        assert said[name] == pytest.approx(measured, rel=TOLERANCE), name
    assert said["gradients"] == said["weights"]


def built_of(family: Any, model: str, folder: Path, *overrides: str) -> tuple[Any, Any]:
    """The run of a recipe in fp32, and its model with weights."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"version: 1\nmodel: {model}\ntraining: {{dataset: tiny, mixed_precision_param: float32}}\n"
    )
    run = resolve_recipe(str(recipe), overrides, environment={}).run
    built = family(run.model, seq_len=64)
    built.init_weights()
    return run, built


def through_a_layer(run: Any, built: Any) -> torch.Tensor:
    """What the last layer makes of two rows of 64 tokens."""
    stream = torch.randn(2, 64, run.model.model_dim(), requires_grad=True)
    out: torch.Tensor = list(built.layers.values())[-1](
        stream, built.select_rope_positions(64, None), None
    )
    return out


@FAMILIES
def test_layers_keep_what_the_formula_says(family: Any, model: str, tmp_path: Path) -> None:
    run, built = built_of(family, model, tmp_path)
    held: dict[int, int] = {}
    weights = {
        weight.untyped_storage().data_ptr() for weight in (*built.parameters(), *built.buffers())
    }

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = through_a_layer(run, built)
    assert out.requires_grad
    assert sum(held.values()) == pytest.approx(
        2 * 64 * 4 * sum(run.model.layer_activation_elements()), rel=ERROR_BAND
    )


def test_the_documentation_plans_what_it_promises() -> None:
    sizes = [re.search(r"--world-size (\d+)", command) for command, _ in DOCUMENTED]
    assert [size and size[1] for size in sizes] == ["8", "256", "512"]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "text"), DOCUMENTED, ids=["8B", "70B", "405B"])
def test_the_documentation_shows_what_plan_prints(command: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", *shlex.split(command.replace("\\\n", " "))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout + done.stderr == text


class Keeping(TorchDispatchMode):
    """Adds up what selective checkpointing keeps of the operations of one pass, by its own
    choice."""

    def __init__(self, shapes: frozenset[torch.Size], saves: tuple[Any, ...]) -> None:
        super().__init__()
        self.choice = SelectiveCheckpointPolicy(shapes, saves)
        self.bytes = 0
        self.has_kernel = False

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        found = operation(*arguments, **(options or {}))
        self.has_kernel |= "attention" in operation.name()
        if (
            self.choice(
                SimpleNamespace(is_recompute=False), operation, *arguments, **(options or {})
            )
            == CheckpointPolicy.MUST_SAVE
        ):
            self.bytes += sum(map(nbytes, tree_leaves(found)))
        return found


@FAMILIES
@pytest.mark.parametrize(
    "saves",
    [
        "",
        "[attention, products]",
        "[every_second_product, activations, grouped_products, biased_products]",
    ],
)
def test_operations_keep_what_the_formula_says(
    family: Any, model: str, saves: str, tmp_path: Path
) -> None:
    chosen = f", per_op_sac_saves: {saves}" if saves else ""
    run, built = built_of(
        family,
        model,
        tmp_path,
        f"activation_checkpoint={{name: selective, selective_ac_option: op{chosen}}}",
    )
    layer = list(built.layers.values())[-1]
    wanted = run.activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns
    with Keeping(
        find_linear_shapes(layer, "layers.0", wanted), run.activation_checkpoint.per_op_sac_saves
    ) as keeping:
        through_a_layer(run, built)
    layout = PlanLayout(run, ParallelDims(), ZERO_SIZE, [ZERO_SIZE], ZERO_SIZE)
    # where keys are wider than values, a CPU has no kernel for attention, and the products instead
    # are not kept
    is_unkept = keeping.has_kernel or "attention" not in run.activation_checkpoint.per_op_sac_saves
    attended = 0 if is_unkept else layer.attention.wo.in_features
    measured = keeping.bytes + 2 * 64 * 4 * (run.model.model_dim() + attended)
    assert measured == pytest.approx(2 * 64 * 4 * kept_of(layout).recomputed_elements, rel=0.02)


def test_a_run_that_does_not_fit_is_told_by_the_exit_code() -> None:
    """Row A18: a script could not tell a plan that fits from one that does not."""
    command = [sys.executable, "-m", "titanrun", "plan", "recipes/llama3_8b.yaml"]
    done = subprocess.run(
        [*command, "--world-size", "1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and " of 78.00 GiB: does not fit\n" in done.stdout, done.stderr
