"""comm.mode fake_backend: one process, which is the first of ranks that are not there."""

import json
from collections.abc import Callable
from pathlib import Path

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.process_group import is_process_group_initialized
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
SIMULATED = (
    "comm.mode=fake_backend",
    "checkpoint.enable=false",
    "training.steps=2",
    "training.global_batch_size=auto",
)


def test_one_process_is_the_first_of_many_ranks(run: Run) -> None:
    resolved = run(
        "run", *SIMULATED, "launch.nproc_per_node=16", "parallelism.tensor_parallel_degree=2"
    )
    assert main([str(resolved)]) == 0
    decided = json.loads((resolved.parent / "run.json").read_text())["starts"][-1]["decided"]
    assert (decided["ranks"], decided["data_parallel_shard_degree"]) == (16, 8)
    # 8 readers of 2 rows of 16 tokens
    assert [line["tokens_seen"] for line in read_metrics(resolved.parent / "metrics.jsonl")] == [
        256,
        512,
    ]
    assert not is_process_group_initialized()
