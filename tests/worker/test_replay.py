"""A step computed twice: no bit changes where nothing is wrong, and what differs is told with its
place."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.test_guard import Run, losses, train
from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.distributed.dtensor import to_local
from titanrun.training.loop import TrainLoop
from titanrun.training.step_replay import CorruptionError
from titanrun.training.stragglers import StragglerDetector
from titanrun.worker.build import build_step_hooks
from titanrun.worker.worker_failures import classify_failure

TWICE = ("debug.deterministic=true", "guard.replay_interval=4")


@pytest.fixture(autouse=True)
def ordinary_kernels() -> Iterator[None]:
    """For the tests that follow."""
    yield
    torch.use_deterministic_algorithms(False)


def flipped(tensor: torch.Tensor, bit: int = 20) -> None:
    """Flips one bit of a tensor in its place."""
    to_local(tensor.detach()).view(torch.int32).view(-1)[0] ^= 1 << bit


def after_each_pass(do: Callable[[TrainLoop], None]) -> Callable[[TrainLoop], None]:
    """Does something to a trainer whenever a pass over the batches of a step is done."""

    def install(trainer: TrainLoop) -> None:
        forward_backward = trainer.engine.forward_backward

        def followed(*batches: Any, **options: Any) -> Any:
            output = forward_backward(*batches, **options)
            do(trainer)
            return output

        trainer.engine.forward_backward = followed  # type: ignore[method-assign]

    return install


def after_pass(number: int, spoil: Callable[[TrainLoop], None]) -> Callable[[TrainLoop], None]:
    """Spoils something when so many are done."""
    calls = [0]

    def count(trainer: TrainLoop) -> None:
        calls[0] += 1
        if calls[0] == number:
            spoil(trainer)

    return after_each_pass(count)


def weights(resolved: Path) -> dict[str, str]:
    files = read_manifest(resolved.parent / "checkpoint" / "step-10").files
    return {
        name: entry.xxh3_128
        for name, entry in files.items()
        if name.endswith((".distcp", ".safetensors"))
    }


def test_every_fourth_step_is_computed_twice_and_no_bit_changes(run: Run) -> None:
    plain, twice = run("plain", TWICE[0]), run("twice", *TWICE)
    calls = [0]
    train(plain)
    train(twice, after_each_pass(lambda trainer: calls.__setitem__(0, calls[0] + 1)))
    assert calls == [12]
    assert losses(plain) == losses(twice)
    assert weights(plain) == weights(twice)


def spoiled_weight(trainer: TrainLoop) -> None:
    flipped(trainer.engine.model.get_parameter("layers.1.attention.wq.weight"))


def spoiled_gradient(trainer: TrainLoop) -> None:
    gradient = trainer.engine.model.get_parameter("norm.weight").grad
    assert gradient is not None
    flipped(gradient, bit=0)


# four passes make the first four steps, the fifth is the fourth step once more
@pytest.mark.parametrize(
    ("passes", "spoil", "words"),
    [
        (
            4,
            spoiled_weight,
            "model.layers.1.attention.wq.weight changed on rank 0 (HOST) while nothing updated "
            "them",
        ),
        (
            5,
            spoiled_gradient,
            "the same batches gave other gradients (norm.weight) the second time on rank 0 (HOST)",
        ),
    ],
)
def test_one_bit_is_found_and_named(
    run: Run, passes: int, spoil: Callable[[TrainLoop], None], words: str
) -> None:
    resolved = run("spoiled", *TWICE)
    with pytest.raises(CorruptionError) as error:
        train(resolved, after_pass(passes, spoil))
    assert re.sub(r"rank 0 \([^)]*\)", "rank 0 (HOST)", str(error.value)) == f"at step 4 {words}"
    assert len(losses(resolved)) == 3
    failure = classify_failure(error.value)
    assert (failure.exit_code, failure.is_internal) == (70, False)
    assert failure.text.startswith("error[corruption]: at step 4 ")


def test_another_loss_is_found(run: Run) -> None:
    def spoil(trainer: TrainLoop) -> None:
        passes: Any = trainer.engine.runner
        loss, calls = passes.loss, [0]

        def wrong(*given: Any) -> torch.Tensor:
            calls[0] += 1
            value: torch.Tensor = loss(*given)
            # two parts of a batch: the last one of the second time over the fourth step
            return value * (1 + 2**-20) if calls[0] == 10 else value

        trainer.engine.runner = replace(passes, loss=wrong)

    with pytest.raises(
        CorruptionError,
        match=r"at step 4 the same batch gave another loss the second time on rank 0",
    ):
        train(run("spoiled", *TWICE), spoil)


def test_the_ratio_of_a_straggler_is_the_recipes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []

    class Noting(StragglerDetector):
        def __init__(self, ratio: float | None = None, **others: Any) -> None:
            seen.append(ratio)
            super().__init__(ratio, **others)

    monkeypatch.setattr(build_step_hooks, "StragglerDetector", Noting)
    train(run("run", "guard.straggler_ratio=7", "checkpoint.enable=false", "training.steps=2"))
    assert seen == [7.0]
