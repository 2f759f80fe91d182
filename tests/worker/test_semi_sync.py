"""LocalSGD and DiLoCo of torchft on this machine, against a loop in plain torch."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worker.conftest import RECIPE, write_tokens
from tests.worker.group_runs import (
    GROUPS,
    Start,
    digests,
    end,
    events,
    find_workers,
    losses,
    names,
    start_runs,
)
from tests.worker.held_runs import release, wait_for_hold
from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader, LoadTolerance
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.worker.build.build_data_source import build_data_source
from titanrun.worker.worker_job import WorkerJob

pytestmark = [pytest.mark.torchft]

STEPS, SYNC_STEPS, BATCH = 16, 4, 4
FRAGMENTS = (("tok_embeddings", "layers.0"), ("layers.1", "norm", "output"))
BOTH = (*GROUPS, "fault_tolerance.min_replica_size=2")
DILOCO = (
    "fault_tolerance.semi_sync_method=diloco",
    f"fault_tolerance.sync_steps={SYNC_STEPS}",
)
LOCAL_SGD = ("fault_tolerance.semi_sync_method=local_sgd", DILOCO[1])
STREAMING = (
    *DILOCO,
    "fault_tolerance.num_fragments=2",
    "fault_tolerance.fragment_sync_delay=1",
    "fault_tolerance.fragment_update_alpha=0.25",
    "fault_tolerance.outer_lr=0.5",
    "fault_tolerance.outer_momentum=0.8",
    "fault_tolerance.outer_nesterov=false",
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    text = RECIPE % write_tokens(folder / "tokens.npy")
    text = text.replace("steps: 10", f"steps: {STEPS}").replace("interval: 100", "interval: 4")
    (folder / "recipe.yaml").write_text(text + "launch: {nproc_per_node: 1, max_restarts: 20}\n")
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def start(recipe: Path) -> Iterator[Start]:
    with start_runs(recipe) as train:
        yield train


class Group:
    """A group of the loop in plain torch: a model that takes the run's own inner steps."""

    def __init__(self, resolved: Path, stack: ExitStack, share: slice) -> None:
        job = WorkerJob(resolved, resolved.read_text(), RankInfo())
        self.parts = build_data_source(
            load_resolved(resolved), job, torch.device("cpu"), None, stack
        )
        self.share = share
        self.weights = dict(self.parts.engine.model.named_parameters())

    def train_step(self) -> float:
        step_input: Any = self.parts.source.next_input()
        output = self.parts.engine.forward_backward(step_input.batches[self.share])
        self.parts.engine.optim_step()
        return float(output.loss)


@pytest.fixture
def groups(recipe: Path, tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "plain").mkdir()
    resolved = tmp_path / "plain" / "resolved.yaml"
    resolved.write_text(resolve_recipe(str(recipe), [], environment={}).text)
    with ExitStack() as stack, torch.random.fork_rng():
        yield lambda count: [
            Group(resolved, stack, slice(number, None, count)) for number in range(count)
        ]


@torch.no_grad()
def mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).mean(dim=0)


def average_weights(groups: list[Group]) -> tuple[dict[str, Tensor], list[float]]:
    """LocalSGD: the mean of the weights every few steps."""
    found = []
    for step in range(1, STEPS + 1):
        found.append([group.train_step() for group in groups])
        for name in groups[0].weights if step % SYNC_STEPS == 0 else ():
            average = mean([group.weights[name] for group in groups])
            for group in groups:
                group.weights[name].data.copy_(average)
    return groups[0].weights, [first for first, *_ in found]


def step_outer_optimizer(
    groups: list[Group],
    fragments: Sequence[Sequence[str]] = (("",),),
    *,
    delay: int = 0,
    alpha: float = 0.0,
    lr: float = 0.7,
    momentum: float = 0.9,
    nesterov: bool = True,
) -> tuple[dict[str, Tensor], list[float]]:
    """DiLoCo: an outer SGD on the mean of old - new of one fragment after the other."""
    old = {name: tensor.detach().clone() for name, tensor in groups[0].weights.items()}
    parts = [[name for name in old if name.startswith(tuple(part))] for part in fragments]
    outer = [
        torch.optim.SGD([old[name] for name in part], lr, momentum=momentum, nesterov=nesterov)
        for part in parts
    ]
    found, interval, changes = [], SYNC_STEPS // len(parts), dict[str, Tensor]()
    for step in range(1, STEPS + 1):
        found.append([group.train_step() for group in groups])
        number = (step + delay) // interval - 1
        part = parts[number % len(parts)]
        if (step + delay) % interval == 0:
            changes = {
                name: mean([old[name] - group.weights[name] for group in groups]) for name in part
            }
        if step % interval == 0:
            for name in part:
                old[name].grad = changes[name]
            outer[number % len(parts)].step()
            for name in part:
                for group in groups:
                    own = group.weights[name].data
                    own.copy_(old[name] * (1 - alpha) + own * alpha)
    return old, [first for first, *_ in found]


def read_weights(folder: Path, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in the last checkpoint of a run."""
    into = {f"model.{name}": torch.empty_like(tensor) for name, tensor in like.items()}
    CheckpointReader(folder / "checkpoint" / f"step-{STEPS}").load_tensors(
        into, tolerance=LoadTolerance(ignore_prefix="optimizer.")
    )
    return {name.removeprefix("model."): tensor for name, tensor in into.items()}


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("method", ["local_sgd", "diloco", "streaming"])
def test_weights_and_losses_are_those_of_a_loop_in_plain_torch(
    method: str, count: int, groups: Any, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = {"local_sgd": LOCAL_SGD, "diloco": DILOCO, "streaming": STREAMING}[method]
    sizes = [f"fault_tolerance.{name}_size={count}" for name in ("group", "min_replica")]
    end(start(folder, *GROUPS, *settings, *sizes))
    plain = groups(count)
    if method == "local_sgd":
        weights, expected = average_weights(plain)
    elif method == "diloco":
        weights, expected = step_outer_optimizer(plain)
    else:
        weights, expected = step_outer_optimizer(
            plain, FRAGMENTS, delay=1, alpha=0.25, lr=0.5, momentum=0.8, nesterov=False
        )
    found = read_weights(folder, weights)
    assert max(float((found[name] - weights[name].detach()).abs().max()) for name in weights) < 1e-6
    assert list(losses(folder).values()) == pytest.approx(expected, rel=1e-6)


def check_rows(folder: Path) -> None:
    """Each group trained its own half of each step, and nothing else."""
    for event in events(folder):
        if event["event"] == "trained":
            assert event["first_row"] == (event["step"] - 1) * BATCH
            assert event["pieces"] == [event["group"]]


@pytest.mark.parametrize(
    ("moment", "step", "group", "method"),
    [
        ("between syncs", 6, 0, DILOCO),
        ("in the sync", 8, 1, DILOCO),
        pytest.param("before the commit", 8, 0, DILOCO, marks=pytest.mark.slow),
        pytest.param("after the commit", 8, 1, DILOCO, marks=pytest.mark.slow),
        pytest.param("between syncs", 6, 1, LOCAL_SGD, marks=pytest.mark.slow),
        ("in the sync", 8, 0, LOCAL_SGD),
    ],
)
def test_a_killed_group_returns_and_all_end_with_the_same_weights(
    moment: str, step: int, group: int, method: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    end(start(folder, *BOTH, *method, faults=[[group, moment, step]]))
    assert [name for name in names(folder, group) if name in ("joined", "healed")] == [
        "joined",
        "joined",
        "healed",
    ]
    check_rows(folder)
    assert len(digests(folder)) == 1 and len(list(folder.glob("digest-*"))) == 2
    assert max(losses(folder)) == STEPS
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"


def test_the_other_group_goes_on_alone_and_writes(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    error = end(
        start(folder, *GROUPS, *DILOCO, "launch.max_restarts=0", faults=[[0, "between syncs", 6]])
    )
    assert "replica group 0 is lost" in error
    # until the next sync nobody knows
    assert set(range(1, STEPS + 1)) - losses(folder).keys() <= {6, 7}
    assert (folder / "checkpoint" / f"step-{STEPS}").is_dir()


def test_a_signal_stops_all_groups_at_a_sync_and_the_run_goes_on_from_it(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder, *BOTH, *DILOCO, hold=5)
    wait_for_hold(folder, process, groups=[0, 1])
    os.kill(find_workers(folder, 1)[0], signal.SIGTERM)
    release(folder)
    end(process, 75)
    last = {
        max(event["step"] for event in events(folder) if event["group"] == group)
        for group in range(2)
    }
    assert len(last) == 1
    (stopped,) = last
    assert stopped % SYNC_STEPS == 0 and (folder / "checkpoint" / f"step-{stopped}").is_dir()
    end(start(folder, *BOTH, *DILOCO))
    check_rows(folder)
    trained = [
        event["step"]
        for event in events(folder)
        if event["event"] == "trained" and event["group"] == 0
    ]
    assert trained == list(range(1, STEPS + 1)) and len(digests(folder)) == 1


@pytest.mark.parametrize("method", [DILOCO, LOCAL_SGD], ids=["diloco", "local_sgd"])
def test_a_group_that_is_alone_resumes_bitwise(
    method: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    alone = (*GROUPS, *method, "fault_tolerance.group_size=1")
    end(start(tmp_path / "whole", *alone))
    cut = start(tmp_path / "cut", *alone, hold=5)
    wait_for_hold(tmp_path / "cut", cut)
    os.kill(find_workers(tmp_path / "cut", 0)[0], signal.SIGTERM)
    release(tmp_path / "cut")
    end(cut, 75)
    end(start(tmp_path / "cut", *alone))
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_groups_of_two_ranks_that_share_weights_end_with_the_same_ones(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    ranks = ("launch.nproc_per_node=2", "training.local_batch_size=1")
    end(start(folder, *BOTH, *DILOCO, *ranks, faults=[[1, "in the sync", 8]]))
    check_rows(folder)
    assert names(folder, 1).count("healed") == 1
    assert [
        len({(folder / f"digest-{group}-{rank}").read_text() for group in range(2)})
        for rank in range(2)
    ] == [1, 1]
