"""A schedule of one's own is refused where PyTorch would refuse it, or wait for ever."""

import random
from pathlib import Path

import pytest
from torch.distributed.pipelining import schedules

from tests.distributed.spec.test_parallel_dims import Stage
from titanrun.distributed.spec.pipeline_schedule_csv import (
    ScheduleFileError,
    find_schedule_problem,
    get_stages_in_order,
    has_split_backward,
    read_schedule_csv,
)

RANKS, STAGES, MICROBATCHES = 2, 4, 4
LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble",)


def written_by_torch(name: str, path: Path) -> Path:
    stages = [
        Stage(RANKS, STAGES // RANKS, index) for index in ((0, 3) if name in V_SHAPED else (0, 2))
    ]
    schedules.get_schedule_class(name)(stages, MICROBATCHES)._dump_csv(path, "compute_only")
    return path


def torch_takes(path: Path) -> bool:
    """Whether torch can put sends and receives between the actions."""
    runtime = schedules._PipelineScheduleRuntime(
        [Stage(RANKS, 2, 0), Stage(RANKS, 2, 2)], MICROBATCHES
    )
    try:
        runtime._load_csv(str(path))
    except (AssertionError, ValueError):
        return False
    return True


def fault(path: Path) -> str | None:
    return find_schedule_problem(
        read_schedule_csv(path), pp_size=RANKS, num_stages=STAGES, num_microbatches=MICROBATCHES
    )


@pytest.mark.parametrize("name", [*LOOPED, *V_SHAPED])
def test_what_torch_writes_is_a_schedule(name: str, tmp_path: Path) -> None:
    path = written_by_torch(name, tmp_path / "order.csv")
    assert fault(path) is None
    order = read_schedule_csv(path)
    assert [get_stages_in_order(order, rank) for rank in range(RANKS)] == (
        [(0, 3), (1, 2)] if name in V_SHAPED else [(0, 2), (1, 3)]
    )
    assert has_split_backward(order) == (name not in ("Interleaved1F1B", "LoopedBFS"))


def test_an_order_that_torch_refuses_is_refused(tmp_path: Path) -> None:
    lines = written_by_torch("Interleaved1F1B", tmp_path / "order.csv").read_text().splitlines()
    draw, verdicts = random.Random(0), []
    for case in range(200):
        line, path = draw.randrange(RANKS), tmp_path / f"{case}.csv"
        cells = [cell for cell in lines[line].split(",") if cell]
        one = draw.randrange(len(cells) - 1)
        cells[one], cells[one + 1] = cells[one + 1], cells[one]
        path.write_text("\n".join([*lines[:line], ",".join(cells), *lines[line + 1 :]]))
        verdicts.append(fault(path) is None)
        assert verdicts[-1] == torch_takes(path), path.read_text()
    assert set(verdicts) == {True, False}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0,0B0\n1F0,1B0,1B0", "1B0 occurs twice"),
        ("0F0,0B0", "it has 1 lines, but there are 2 pipeline ranks"),
        ("0F0,0B0\n0F1,0B1", "its lines contain stages 0, 0, but the pipeline has 0 to 1"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1", "it has 2 microbatches, but a forward pass has 1"),
        ("0F0\n1F0,1B0", "stage 0 needs F and B, or F, I and W, of microbatch 0, but has F"),
        (
            "0F0,0B0\n1B0,1F0",
            "it deadlocks: 0B0 on line 1, 1B0 on line 2 would wait forever",
        ),
        ("", "it has 0 lines, but there are 2 pipeline ranks"),
        (",\n,", "it has no actions"),
    ],
)
def test_what_is_wrong_is_put_into_words(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text(text)
    assert (
        find_schedule_problem(
            read_schedule_csv(tmp_path / "order.csv"), pp_size=2, num_stages=2, num_microbatches=1
        )
        == said
    )


def test_a_cell_that_is_no_action_is_named(tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text("0F0,0SEND_F0\n")
    with pytest.raises(ScheduleFileError, match="line 1 contains '0SEND_F0'"):
        read_schedule_csv(tmp_path / "order.csv")
