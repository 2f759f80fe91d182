"""A save beside training, and the update that must not overtake its copies."""

from pathlib import Path
from types import SimpleNamespace

from tests.training.test_engine import batch, engine
from titanrun.components.checkpoints.async_save import AsyncSaver, StagingBuffer
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.distributed.host_copies import HostCopies
from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.training.train_state import TrainState


def test_the_update_after_a_save_waits_on_the_device_for_its_copies(tmp_path: Path) -> None:
    trained, seen = engine(), []
    weight = trained.model.get_parameter("head.weight")

    class Copies(HostCopies):
        def wait_on_device(self) -> None:
            seen.append(weight.detach().clone())

    stage, store = StagingBuffer(), CheckpointStore(folder=tmp_path)
    stage.copies = Copies()
    manager = CheckpointManager(
        config=CheckpointConfig(enable=True),
        store=store,
        engine=trained,
        dataloader=SimpleNamespace(state_dict=dict, load_state_dict=lambda *given, **named: None),
        train_state=TrainState(step=1),
        resolved_text="",
        async_saver=AsyncSaver(store.save, stage),
    )
    before = weight.detach().clone()
    manager.save()
    trained.forward_backward(batch())
    assert seen == []
    trained.optim_step()
    assert len(seen) == 1 and seen[0].equal(before) and not weight.equal(before)
    assert manager.async_saver is not None
    manager.async_saver.close()
