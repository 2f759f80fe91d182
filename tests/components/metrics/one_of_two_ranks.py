"""One rank of the test of reduction over ranks: `python one_of_two_ranks.py RANK RENDEZVOUS_FILE`
prints what it flushed."""

import json
import sys

import torch
import torch.distributed as dist

from titanrun.components.metrics.step_metrics import StepMetrics, record_metric


def main(rank: int, rendezvous_file: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous_file}", rank=rank, world_size=2
    )
    calls: list[str] = []
    all_reduce = dist.all_reduce

    def counted(tensor: torch.Tensor, op: object, group: object) -> None:
        calls.append(str(op))
        all_reduce(tensor, op, group=group)

    dist.all_reduce = counted
    recorder = StepMetrics(torch.device("cpu"))
    with recorder.open():
        # ranks call in another order and another number of times
        for value in (range(3), range(10, 11))[rank]:
            record_metric("data/mean", value, "mean")
        names = ["a/sum", "b/sum"] if rank == 0 else ["b/sum", "a/sum"]
        for name in names:
            record_metric(name, torch.tensor(rank + 1), "sum")
        record_metric("c/max", float(rank), "max")
        record_metric("c/min", torch.tensor(float(rank)), "min")
    print(json.dumps({"values": recorder.flush(dist.group.WORLD), "collectives": len(calls)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
