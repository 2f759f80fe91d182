"""One rank of the test of checkpoints saved by two: `python one_of_two_ranks.py RANK
RENDEZVOUS_FILE FOLDER` prints what it met."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import get_default_rank_group


def main(rank: int, rendezvous_file: str, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous_file}", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    store = CheckpointStore(
        folder=folder, retention=RetentionPolicy(2), ranks=get_default_rank_group()
    )
    weight = distribute_tensor(torch.arange(15.0).reshape(5, 3), mesh, [Shard(0)])
    met = {}
    for step in (1, 2, 3):
        tensors = {"w": weight + step, "whole": torch.full((2,), float(step))}
        rng = {"torch.cpu": torch.full((4,), rank, dtype=torch.uint8)}
        store.save(
            Snapshot(
                step=step,
                tensors=tensors,
                state={
                    "train": {"step": step},
                    "engine": {"steps_done": step},
                    "data": {"seen": step},
                },
                rng=rng,
                resolved_yaml="version: 1\n",
                layout={"ranks": 2},
            )
        )
    met["steps"] = store.list_complete_steps()
    into = {"w": distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)]), "whole": torch.zeros(2)}
    store.get_checkpoint(3).load_tensors(into, ranks=store.ranks)
    met["loaded"] = into["w"].full_tensor().tolist()
    met["rng"] = store.get_checkpoint(3).load_rng_states(rank)["torch.cpu"].tolist()
    met["taken"] = problem_of(
        lambda: store.save(Snapshot(step=3, tensors={}, state={}, rng={}, resolved_yaml=""))
    )
    met["one rank fails"] = problem_of(
        lambda: store.ranks.all_gather_results(lambda: fail_on_the_second(rank))
    )
    if rank == 0:
        shard = folder / "step-3" / "__1_0.distcp"
        shard.write_bytes(shard.read_bytes()[::-1])
    dist.barrier()
    met["damage"] = store.find_damage(3, "always")
    print(json.dumps(met))
    dist.destroy_process_group()


def fail_on_the_second(rank: int) -> None:
    if rank == 1:
        raise OSError(28, "No space left on device", "shard")


def problem_of(work: object) -> str:
    try:
        work()  # type: ignore[operator]
    except (ProblemsFound, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
