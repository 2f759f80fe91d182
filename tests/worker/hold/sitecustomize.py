"""Holds the first rank of a run after a step; `tests.worker.held_runs` puts it on the path.

Python imports this module at the start of each process. Once the step of HOLD_STEP is logged and
saved, the rank leaves a file `held-GROUP` in the run directory, and waits for the file `released`
beside it. When a signal asks it to stop or save, it leaves a file `asked-GROUP`.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

MAX_SECONDS = 300


def is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def leave(word: str) -> Path:
    """Leave a file of this group in the run directory, and return that."""
    resolved = Path(sys.argv[-1])
    assert resolved.name == "resolved.yaml", sys.argv
    folder = resolved.parent
    (folder / f"{word}-{os.environ.get('TITANRUN_GROUP', '0')}").touch()
    return folder


def hold(hook: Any, loop: Any, is_last: bool) -> None:
    """Wait after the step, as a method of a hook."""
    if loop.state.step != int(os.environ["HOLD_STEP"]) or not is_first_rank():
        return
    released = leave("held") / "released"
    # nobody may be left who lets it go on
    end = time.monotonic() + MAX_SECONDS
    while not released.exists() and time.monotonic() < end:
        time.sleep(0.05)


def change_hook(module: Any) -> None:
    module.StatusHook.on_step_complete = hold


def change_signals(module: Any) -> None:
    receive = module.SignalRequests._receive

    def receive_and_tell(self: Any, *arguments: Any) -> None:
        receive(self, *arguments)
        if is_first_rank():
            leave("asked")

    module.SignalRequests._receive = receive_and_tell


CHANGES: dict[str, Callable[[Any], None]] = {
    "titanrun.training.hooks.status_hook": change_hook,
    "titanrun.training.signal_requests": change_signals,
}


class ChangingFinder:
    """Finder that changes modules when they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            change(module)

        loader.exec_module = execute_and_change
        return spec


if "HOLD_STEP" in os.environ:
    finder: Any = ChangingFinder()
    sys.meta_path.insert(0, finder)
