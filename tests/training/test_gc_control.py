import gc
import logging
import weakref

import pytest
import torch

from titanrun.components.data.config import TinyDatasetConfig
from titanrun.training.config import TrainingConfig
from titanrun.training.gc_control import GarbageCollection, collect_tensor_cycles


class Cycle:
    """Holds itself, and a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.ones(3)
        self.itself = self


def config(*, freq: int = 2, debug: bool = False) -> TrainingConfig:
    return TrainingConfig(dataset=TinyDatasetConfig(), gc_freq=freq, gc_debug=debug)


def test_cycles_go_at_the_steps_that_are_due_and_not_before() -> None:
    with GarbageCollection(config(freq=3)) as collection:
        assert not gc.isenabled()
        lives = weakref.ref(Cycle())
        alive = []
        for step in (1, 2, 3):
            collection.after_step(step)
            alive.append(lives() is not None)
    assert alive == [True, True, False]
    assert gc.isenabled()


def test_debugging_reports_tensors_in_cycles_and_frees_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = weakref.ref(Cycle())
    gc.freeze()
    gc.unfreeze()  # into the oldest generation, which a young collection leaves alone
    with GarbageCollection(config(debug=True)) as collection, caplog.at_level(logging.WARNING):
        assert before() is None
        collection.after_step(1)
        lives = weakref.ref(Cycle())
        collection.after_step(2)
        assert lives() is None
        collection.after_step(3)
    assert [record.getMessage() for record in caplog.records] == [
        "step 2: reference cycles kept 1 tensor alive until garbage collection"
    ]
    assert gc.get_debug() == 0


def test_debugging_does_not_touch_what_a_dead_proxy_stood_for() -> None:
    cycle = Cycle()
    proxy = weakref.proxy(cycle)
    del cycle
    gc.collect()
    # torch 2.11 leaves such proxies in the garbage of its own cycles
    gc.garbage.append(proxy)
    try:
        assert collect_tensor_cycles() == 0
    finally:
        gc.garbage.clear()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with GarbageCollection(config()):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
