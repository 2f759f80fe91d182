"""Experts that ranks share: where they are, how tokens get to them, and how weights get out of them
and back."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from tests.distributed.ranks import EXPERTS, TEXT, train
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.device import CPU
from titanrun.distributed.dtensor import full_tensor, to_local
from titanrun.distributed.expert_parallel import argsort_by_expert, split_slots_over_tp
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.grouped_experts import GroupedExperts
from titanrun.models.shared.moe import Moe, run_experts_locally
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.worker.build.build_model import build_model
from titanrun.worker.build.build_parallelism import parallelize_model
from titanrun.worker.process_group_setup import build_parallel_dims
from titanrun.worker.weights.huggingface_export import export_huggingface
from titanrun.worker.weights.initial_weights import load_huggingface

SHORT = (
    "training.steps=1",
    "lr_scheduler.warmup_steps=0",
    "validation={enable: false}",
    "parallelism.expert_parallel_degree=2",
)
# slots of each of the four experts, by rank; the second rank holds the last two experts
CROWDED = {
    "all_on_one": ([9, 0, 0, 0], [5, 0, 0, 0]),
    "uneven": ([0, 7, 1, 0], [2, 0, 0, 3]),
    "one_rank_idle": ([0] * 4, [0, 0, 4, 0]),
}


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What two ranks that share four experts see."""
    return train(2, [*EXPERTS, *SHORT], look=look).build_mask


@contextmanager
def laid_out(folder: Path, ranks: int, overrides: list[str]) -> Iterator[nn.Module]:
    """The model of a recipe as the first of `ranks` holds it, without memory and without the
    others."""
    (folder / "recipe.yaml").write_text(TEXT)
    overrides = [*EXPERTS, f"training.global_batch_size={2 * ranks}", *overrides]
    recipe = resolve_recipe(str(folder / "recipe.yaml"), overrides, environment={}, ranks=ranks).run
    precision = get_precision("float32", "float32")
    dist.init_process_group("fake", rank=0, world_size=ranks)
    try:
        model = build_model(recipe, precision)
        parallelize_model(
            recipe,
            model,
            meshes=ParallelMeshes(build_parallel_dims(recipe, ranks), CPU),
            precision=precision,
        )
        yield model
    finally:
        dist.destroy_process_group()


def look(trainer: TrainLoop) -> dict[str, Any]:
    """What a rank holds of the experts, what comes back from them, and whether weights come back
    from a Hugging Face folder."""
    layer = get_moe_layers(trainer.engine.model)[0]
    found: dict[str, Any] = {
        "share": tuple(to_local(layer.experts.w1).shape),
        "balance": layer.expert_bias.clone(),
    }
    found["warns"] = logging.getLogger("torch.distributed.tensor._redistribute").isEnabledFor(
        logging.WARNING
    )
    for name, counts in CROWDED.items():
        found[name] = exchanged(layer, torch.tensor(counts[dist.get_rank()]))
    return found | {"changed_by_export": changed_by_export(trainer)}


def exchanged(layer: Moe, counts_E: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Outputs and gradients of random slots through the experts of both ranks, each beside the same
    through a copy of all experts."""
    torch.manual_seed(dist.get_rank())
    slots_SD = torch.randn(int(counts_E.sum()), layer.experts.w1.size(2))
    whole = GroupedExperts(layer.config, dim=slots_SD.size(1))
    found = []
    for name, weight in whole.named_parameters():
        weight.data.copy_(full_tensor(layer.experts.get_parameter(name).detach()))
    for experts, exchange in (
        (layer.experts, layer.token_dispatcher),
        (whole, run_experts_locally),
    ):
        own_SD = slots_SD.clone().requires_grad_()
        out_SD = exchange(experts, own_SD, counts_E)
        out_SD.square().sum().backward()
        found.append({"out": out_SD.detach().clone(), "slots": own_SD.grad})
    for name, weight in whole.named_parameters():
        assert weight.grad is not None
        dist.all_reduce(weight.grad)
        split = layer.experts.get_parameter(name)
        found[0][name], found[1][name], split.grad = full_tensor(split.grad), weight.grad, None
    return {name: (found[0][name], found[1][name]) for name in found[0]}


def changed_by_export(trainer: TrainLoop) -> list[str]:
    """The weights that are not the same bits after a way through a Hugging Face folder."""
    model = trainer.engine.model
    folder = Path(get_default_rank_group().broadcast_from_main(mkdtemp)) / "exported"
    before = {
        name: full_tensor(weight.detach()).clone() for name, weight in model.named_parameters()
    }
    options = {"engine": trainer.engine, "model_config": model.config}
    export_huggingface(
        folder, tokenizer=None, dtype_name="float32", is_writer=dist.get_rank() == 0, **options
    )
    dist.barrier()
    for weight in model.parameters():
        to_local(weight).detach().zero_()
    load_huggingface(folder, **options)
    dist.barrier()
    rmtree(folder.parent, ignore_errors=True)
    return [
        name
        for name, weight in model.named_parameters()
        if not torch.equal(full_tensor(weight.detach()), before[name])
    ]


@pytest.mark.parametrize(
    ("ranks", "layout", "share", "mesh"),
    [
        (2, {"expert_parallel": 2}, (2, 96, 64), ("efsdp", "ep")),
        (4, {"expert_parallel": 2}, (1, 96, 64), ("efsdp", "ep")),
        (8, {"expert_parallel": 2}, (2, 24, 64), ("efsdp", "ep")),
        (
            8,
            {"expert_parallel": 2, "data_parallel_replicate": 2},
            (1, 96, 64),
            ("dp_replicate", "efsdp", "ep"),
        ),
        (2, {"expert_parallel": 2, "tensor_parallel": 2}, (2, 96, 64), ("efsdp", "ep")),
        (
            4,
            {"expert_parallel": 2, "tensor_parallel": 2, "expert_tensor_parallel": 2},
            (2, 48, 64),
            ("efsdp", "ep", "etp"),
        ),
    ],
    ids=str,
)
def test_an_expert_is_split_as_the_degrees_say(
    ranks: int,
    layout: dict[str, int],
    share: tuple[int, ...],
    mesh: tuple[str, ...],
    tmp_path: Path,
) -> None:
    with laid_out(
        tmp_path, ranks, [f"parallelism.{name}_degree={degree}" for name, degree in layout.items()]
    ) as model:
        weight: Any = get_moe_layers(model)[0].experts.w1
        assert (tuple(to_local(weight).shape), weight.device_mesh.mesh_dim_names) == (share, mesh)


def test_few_experts_of_an_odd_width_leave_ranks_without_one(tmp_path: Path) -> None:
    with laid_out(
        tmp_path, 8, ["parallelism.expert_parallel_degree=2", "model.moe.hidden_dim=98"]
    ) as model:
        experts = get_moe_layers(model)[0].experts
        assert [tuple(to_local(weight).shape) for weight in (experts.w1, experts.w2)] == [
            (1, 98, 64),
            (2, 16, 98),
        ]


def test_ranks_that_experts_do_not_fit_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    overrides = [*EXPERTS, "parallelism.expert_parallel_degree=2", "training.global_batch_size=12"]
    recipe = resolve_recipe(str(tmp_path / "recipe.yaml"), overrides, environment={}, ranks=2).run
    with pytest.raises(ProblemsFound, match="2 expert ranks do not fit 3 started processes"):
        build_parallel_dims(recipe, 3)


def test_each_layer_asks_for_the_weights_of_the_next_before_tokens_travel(tmp_path: Path) -> None:
    with laid_out(tmp_path, 4, ["parallelism.expert_parallel_degree=2"]) as model:
        first, second = (
            layer._get_fsdp_state() for layer in model.get_submodule("layers").children()
        )
        states = {
            name: moe_layer.experts._get_fsdp_state()
            for name, moe_layer in zip("ab", get_moe_layers(model), strict=True)
        }
        assert first._states_to_forward_prefetch == [second, states["b"]]
        assert second._states_to_backward_prefetch == [first, states["a"]]
        embedding, norm, output = (
            model.get_submodule(name)._get_fsdp_state()
            for name in ("tok_embeddings", "norm", "output")
        )
        # norm and output are gathered together
        assert norm is output
        assert embedding._states_to_forward_prefetch == [first, states["a"]]
        assert second._states_to_forward_prefetch == [output]
        assert output._states_to_backward_prefetch == [second, states["b"]]
        assert first._states_to_backward_prefetch == [embedding]


def test_a_tied_matrix_is_asked_for_by_nobody(tmp_path: Path) -> None:
    # the ends are one group, which is gathered before the first layer and after the last
    tied = ["parallelism.expert_parallel_degree=2", "model.tie_word_embeddings=true"]
    with laid_out(tmp_path, 4, tied) as model:
        ends = model.get_submodule("tok_embeddings")._get_fsdp_state()
        assert ends is model.get_submodule("output")._get_fsdp_state()
        assert ends._states_to_forward_prefetch == ends._states_to_backward_prefetch == []


@pytest.mark.parametrize(("layout", "is_on_host"), [("tensor", False), ("data", True)])
def test_weights_wait_on_the_host_where_several_ranks_share_the_data(
    layout: str, is_on_host: bool, tmp_path: Path
) -> None:
    split = ["parallelism.tensor_parallel_degree=2"] if layout == "tensor" else []
    with laid_out(
        tmp_path,
        2,
        ["training.enable_cpu_offload=true", "parallelism.expert_parallel_degree=2", *split],
    ) as model:
        held = [
            module._get_fsdp_state()._fsdp_param_group
            for module in model.modules()
            if isinstance(module, FSDPModule)
        ]
        assert {
            weight.offload_to_cpu
            for group in held
            if group is not None
            for weight in group.fsdp_params
        } == {is_on_host}


def test_each_rank_holds_its_experts_whole(seen: list[dict[str, Any]]) -> None:
    assert [rank["share"] for rank in seen] == [(2, 96, 64)] * 2


def test_every_rank_moves_the_balance_alike(seen: list[dict[str, Any]]) -> None:
    assert torch.equal(seen[0]["balance"], seen[1]["balance"])
    assert seen[0]["balance"].any()


def test_torch_says_nothing_of_how_experts_are_gathered(seen: list[dict[str, Any]]) -> None:
    assert [rank["warns"] for rank in seen] == [False, False]


@pytest.mark.parametrize("case", CROWDED)
def test_no_token_is_dropped_however_many_an_expert_gets(
    case: str, seen: list[dict[str, Any]]
) -> None:
    for rank in seen:
        for ours, theirs in rank[case].values():
            torch.testing.assert_close(ours, theirs)


def test_weights_go_to_hugging_face_and_back_from_every_rank(seen: list[dict[str, Any]]) -> None:
    assert [rank["changed_by_export"] for rank in seen] == [[], []]


def test_slots_that_arrive_by_rank_are_sorted_by_expert() -> None:
    received_RL = torch.tensor([[1, 2], [0, 0], [3, 1]])
    arrived = ["a0", "b0", "b0", "a2", "a2", "a2", "b2"]
    assert [arrived[slot] for slot in argsort_by_expert(received_RL, 7)] == [
        "a0",
        "a2",
        "a2",
        "a2",
        "b0",
        "b0",
        "b2",
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_slots_dealt_to_ranks_are_counted_by_expert(ranks: int) -> None:
    expert_S = torch.tensor([0, 0, 0, 0, 0, 2, 2, 3, 5, 5, 5])
    for rank in range(ranks):
        expected = expert_S[rank::ranks].bincount(minlength=6)
        assert torch.equal(
            split_slots_over_tp(expert_S.bincount(minlength=6), rank, ranks), expected
        )
