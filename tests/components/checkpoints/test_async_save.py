"""Saves beside training: the copy is made first, is exact, and errors come back."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from titanrun.components.checkpoints.async_save import AsyncSaver, StagingBuffer
from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore


def snapshot(step: int, tensors: dict[str, torch.Tensor]) -> Snapshot:
    return Snapshot(step=step, tensors=tensors, state={}, rng={}, resolved_yaml="")


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_copy_is_exact_and_apart(is_shared: bool) -> None:
    tensors = {
        "odd": torch.tensor([True, False, True]),
        "count": torch.tensor(7),
        "strided": torch.randn(4, 6).bfloat16()[:, ::2],
        "empty": torch.zeros(0, 3),
        "special": torch.tensor([float("nan"), -0.0, 1e-45]),
    }
    stage = StagingBuffer(is_shared=is_shared)
    staged = stage.stage(tensors)
    assert staged.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert staged[name].dtype == tensor.dtype
        assert staged[name].equal(tensor) or name == "special"
    assert staged["special"].view(torch.int32).equal(tensors["special"].view(torch.int32))
    tensors["count"].fill_(8)
    assert staged["count"].item() == 7
    address = stage.buffer.data_ptr()
    assert stage.stage(tensors)["count"].item() == 8
    assert stage.buffer.data_ptr() == address


def test_what_changes_during_the_save_is_not_saved(tmp_path: Path) -> None:
    store, may_write = CheckpointStore(folder=tmp_path), threading.Event()

    def save(given: Snapshot) -> None:
        assert may_write.wait(30)
        store.save(given)

    saves = AsyncSaver(save, StagingBuffer())
    weight = torch.ones(3)
    saves.start_save(snapshot(1, {"w": weight}), lambda: None)
    weight.fill_(5)
    saves.raise_if_failed()
    may_write.set()
    saves.close()
    into = {"w": torch.zeros(3)}
    store.get_checkpoint(1).load_tensors(into)
    assert into["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "ask",
    [
        AsyncSaver.wait,
        AsyncSaver.close,
        lambda saves: saves.start_save(snapshot(2, {}), lambda: None),
    ],
)
def test_an_error_comes_back_once(ask: Callable[[AsyncSaver], None]) -> None:
    def save(given: Snapshot) -> None:
        raise OSError(28, "No space left on device")

    saves = AsyncSaver(save, StagingBuffer())
    saves.start_save(snapshot(1, {}), lambda: None)
    with pytest.raises(OSError, match="No space left"):
        ask(saves)
    saves.close()
