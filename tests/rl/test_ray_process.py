"""An actor of Ray as a process of the fleet, without a cluster; make test-ray installs it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An owner that opens no actors, however long one waits. `asked` tells that somebody does."""
    pytest.importorskip("ray", reason="make test-ray installs it")
    from titanrun.rl.fleet import actor_owner

    class SilentOwner(actor_owner.ActorOwner):
        asked = threading.Event()

        def find_actor(self, number: int) -> None:
            return None

        def _get_actor(self, name: str) -> None:
            self.asked.set()

    monkeypatch.setattr(actor_owner, "OPEN_SECONDS", float("inf"))
    owner = SilentOwner(
        number=0,
        command=["sleep", "1000"],
        environment=os.environ,
        log_file=tmp_path / "owner.log",
        starts_left=1,
        stop_seconds=0.0,
    )
    owner.start(lambda start, message: None, lambda start: None)
    yield owner
    owner.close()


def test_nobody_waits_for_an_actor_that_is_not_needed_any_more(tmp_path: Path, owner: Any) -> None:
    """A question after the end of the run would start another Ray."""
    from titanrun.rl.fleet.ray_process import RayProcess

    ended = threading.Event()
    process = RayProcess(
        number=0,
        owner=owner,
        run=lambda actor: None,
        find_references=lambda key: [],
        log_file=tmp_path / "generator.log",
        starts_left=1,
    )
    process.start(lambda start, message: None, lambda start: ended.set())
    assert owner.asked.wait(300)
    process.close()
    assert ended.wait(60)
