"""Settings of many ranks do what they say, as each rank sees it."""

import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import train
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.dtensor import is_sharded
from titanrun.distributed.flight_recorder import dump_flight_recorder
from titanrun.distributed.rank_env import RankInfo
from titanrun.training.loop import TrainLoop

SHORT = (
    "training.steps=1",
    "lr_scheduler.warmup_steps=0",
    "training.global_batch_size=4",
    "validation={enable: false}",
    "model.n_layers=2",
)


def look(trainer: TrainLoop) -> dict[str, Any]:
    """How a rank holds the weights, before and right after a forward pass, and how long it would
    wait for the others."""
    model = trainer.engine.model
    layer = model.get_submodule("layers.0")
    weight = layer.get_parameter("attention.wq.weight")
    found: dict[str, Any] = {
        "placements": str(weight.placements),
        "share": tuple(weight.to_local().shape),
    }
    trainer.engine.evaluate_loss(TokenBatch.from_sequences(torch.zeros(1, 9, dtype=torch.int64)))
    found["is_dropped"] = is_sharded(layer.get_parameter("attention.wq.weight"))
    found["is_offloaded"] = layer._get_fsdp_state()._fsdp_param_group.fsdp_params[0].offload_to_cpu
    recorded = dump_flight_recorder(RankInfo(rank=dist.get_rank()))
    found["recorded"] = None if recorded is None else (recorded.parent.name, recorded.name)
    found["names"] = (
        set()
        if recorded is None
        else {entry["profiling_name"] for entry in pickle.loads(recorded.read_bytes())["entries"]}
    )
    found["timeout"] = timeout_of(dist.group.WORLD)
    found["timeout_of_saves"] = (
        timeout_of(trainer.checkpoints.rank_group.group)
        if trainer.checkpoints is not None
        else None
    )
    return found


def timeout_of(group: dist.ProcessGroup) -> float:
    """How long a collective of a group may take, in seconds."""
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [],
            {
                "placements": "(Shard(dim=0),)",
                "share": (128, 256),
                "is_dropped": True,
                "is_offloaded": False,
            },
        ),
        (
            ["parallelism.fsdp_reshard_after_forward=never", "comm.train_timeout_seconds=77"],
            {"is_dropped": False, "timeout": 77},
        ),
        (["training.enable_cpu_offload=true"], {"is_offloaded": True}),
        (
            ["checkpoint.enable=true", "comm.train_timeout_seconds=88"],
            {"timeout": 88, "timeout_of_saves": 24 * 3600},
        ),
        (
            ["parallelism.data_parallel_replicate_degree=2"],
            {"placements": "(Replicate(),)", "share": (256, 256)},
        ),
    ],
    ids=["default", "never", "offload", "patient_saves", "replicate"],
)
def test_a_setting_does_what_it_says(overrides: list[str], expected: dict[str, Any]) -> None:
    seen = train(2, [*SHORT, *overrides], look=look).build_mask
    assert len(seen) == 2
    for rank in seen:
        assert {name: rank[name] for name in expected} == expected


def test_the_last_collectives_of_each_rank_are_in_its_file() -> None:
    named = [
        "comm={save_traces_folder: lost, save_traces_file_prefix: r, trace_buf_size: 500}",
        "metrics.save_for_all_ranks=true",
    ]
    trained = train(2, [*SHORT, *named], look=look)
    assert [rank["recorded"] for rank in trained.build_mask] == [("lost", "r0"), ("lost", "r1")]
    assert all("gloo:all_reduce" in rank["names"] for rank in trained.build_mask)
    # and every rank has its own metrics, of which the loss is that of all
    other = read_metrics(trained.folder / "ranks" / "rank-1" / "metrics.jsonl")
    assert [line["loss"] for line in other] == [line["loss"] for line in trained.numbers]


def test_a_recorder_of_no_size_writes_nothing() -> None:
    trained = train(2, [*SHORT, "comm.trace_buf_size=0"], look=look)
    assert [rank["recorded"] for rank in trained.build_mask] == [None, None]
    assert not (trained.folder / "ranks").exists()
