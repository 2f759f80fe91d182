"""Two passes at once: they meet where their tokens travel, and never communicate together."""

from threading import Thread

import pytest
import torch

from tests.distributed.ranks import EXPERTS, train
from titanrun.distributed.dual_pipe_overlap import OverlapBarrier
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.training.loop import TrainLoop

WAIT_SECONDS = 60


def passes_at_once(forward_layers: int, backward_layers: int) -> list[tuple[str, str]]:
    """What two passes did when, each `begin` or `end` of one's communication."""
    turns, done = OverlapBarrier(), []
    tokens = torch.ones(1, requires_grad=True)
    travelled = tokens
    for _ in range(backward_layers):
        for _ in ("there", "back"):
            travelled = turns.insert_barrier(
                noted(turns.insert_barrier(travelled), "backward", done)
            )
    done.clear()
    turns.start_pair()

    def go_forward() -> None:
        moved = tokens
        for _ in range(forward_layers):
            for _ in ("there", "back"):
                moved = turns.insert_barrier(noted(turns.insert_barrier(moved), "forward", done))
        turns.finish_pass()

    def go_backward() -> None:
        travelled.sum().backward()
        turns.finish_pass()

    threads = [Thread(target=go, daemon=True) for go in (go_forward, go_backward)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), (
        "the passes wait for each other for ever"
    )
    return done


def noted(tensor: torch.Tensor, name: str, done: list[tuple[str, str]]) -> torch.Tensor:
    """A communication, which takes its time either way."""
    if name == "backward":
        tensor.register_hook(lambda gradient: note(name, done))
    else:
        note(name, done)
    return tensor * 1


def note(name: str, done: list[tuple[str, str]]) -> None:
    done.append((name, "begin"))
    torch.randn(100, 100) @ torch.randn(100, 100)
    done.append((name, "end"))


@pytest.mark.parametrize(
    ("forward_layers", "backward_layers"), [(2, 2), (1, 3), (3, 1), (0, 2), (2, 0)]
)
def test_passes_communicate_one_after_the_other_in_one_order(
    forward_layers: int, backward_layers: int
) -> None:
    for _ in range(20):
        done = passes_at_once(forward_layers, backward_layers)
        pairs = [done[place : place + 2] for place in range(0, len(done), 2)]
        assert all(
            first[0] == second[0] and (first[1], second[1]) == ("begin", "end")
            for first, second in pairs
        )
        order = [first[0] for first, _ in pairs]
        assert (order.count("forward"), order.count("backward")) == (
            2 * forward_layers,
            2 * backward_layers,
        )
        together = 2 * min(forward_layers, backward_layers)
        assert order[: 2 * together] == ["backward", "forward"] * together


def meetings(trainer: TrainLoop) -> list[int]:
    """How often passes met at each layer's exchange."""
    marks = [
        layer.token_dispatcher.insert_barrier for layer in get_moe_layers(trainer.engine.model)
    ]
    return [mark.__self__.num_syncs if hasattr(mark, "__self__") else 0 for mark in marks]


@pytest.mark.slow
def test_pairs_of_passes_meet_where_the_recipe_says_so() -> None:
    pipeline = "pipeline_parallel_degree: 2, pipeline_parallel_schedule: DualPipeV"
    # a layer in each stage
    even = (
        "pipeline_parallel_first_stage_less_layers: 0, pipeline_parallel_last_stage_less_layers: 0"
    )
    layout = [f"parallelism={{{pipeline}, {even}, expert_parallel_degree: 2}}"]
    small = [*EXPERTS, "model.n_layers=4", "training.local_batch_size=4", "training.steps=2"]
    together = train(4, [*small, *layout], look=meetings)
    apart = train(
        4,
        [*small, *layout, "parallelism.pipeline_parallel_expert_parallel_overlap=false"],
        look=meetings,
    )
    assert all(count > 0 for counts in together.build_mask for count in counts)
    assert all(count == 0 for counts in apart.build_mask for count in counts)
    assert together.numbers == apart.numbers
