"""A signal to stop ends a wait for the data of any step, and the run goes on bitwise."""

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.components.data.fragile_server import FragileServer, serve_files
from tests.worker.test_resume_every_step import content
from titanrun.components.data.lane_loader import LaneLoader
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.run_files import read_json_or_empty
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
STEPS = 10
FILES = ["texts/a.jsonl", "texts/b.jsonl"]


class StoppingAtFailure(logging.Handler):
    """Sends this process SIGTERM when it says that it waits for a file."""

    def emit(self, record: logging.LogRecord) -> None:
        if "cannot be read" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stop_at_failure() -> Iterator[None]:
    listener, logger = StoppingAtFailure(), logging.getLogger("titanrun")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


@pytest.fixture
def server() -> Iterator[FragileServer]:
    """A server with two files, each enough for some steps."""
    with serve_files() as server:
        server.lists_folders = True
        for number, name in enumerate(FILES):
            lines = [json.dumps({"text": f"<{number} {row}> and so on"}) for row in range(24)]
            server.files[name] = "\n".join(lines).encode()
        yield server


def settings(server: FragileServer, num_workers: int) -> list[str]:
    dataset = {"name": "text", "path": f"{server.url}/texts/", "streaming": True}
    dataset |= {"shuffle": False, "window": 4}
    return [
        "tokenizer=tiny",
        "model.vocab_size=2048",
        f"training.dataset={json.dumps(dataset)}",
        # a lane reads one file after the other
        "training.lanes=1",
        f"training.steps={STEPS}",
        f"training.dataloader.num_workers={num_workers}",
        "training.dataloader.retry_timeout=60s",
    ]


def refuse_all_but_the_size(first: int, end: int | None) -> int | None:
    return None if end is not None and end - first <= 1 else 503


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stop_amid_a_run_saves_the_last_step_and_the_run_goes_on_bitwise(
    run: Run, server: FragileServer, num_workers: int
) -> None:
    uncut, stopped = (run(name, *settings(server, num_workers)) for name in ("uncut", "stopped"))
    assert main([str(uncut)]) == 0
    server.choose_fault[FILES[1]] = refuse_all_but_the_size
    with stop_at_failure():
        assert main([str(stopped)]) == 75
    status = read_json_or_empty(stopped.parent / "status.json")
    step = status["step"]
    assert (status["state"], 0 < step < STEPS) == ("preempted", True)
    log = (stopped.parent / "logs" / "rank-0.log").read_text()
    assert f"stopped by SIGTERM after step {step} of {STEPS}, saved" in log
    assert content(stopped, step)
    del server.choose_fault[FILES[1]]
    assert main([str(stopped)]) == 0
    assert content(stopped, STEPS) == content(uncut, STEPS)


def test_data_that_cannot_be_read_is_asked_for_once(
    run: Run, server: FragileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several lanes, the run waited once more for each after the first was given up."""
    resolved = run("run", *settings(server, 0))
    server.choose_fault[FILES[1]] = lambda first, end: (
        404 if refuse_all_but_the_size(first, end) else None
    )
    ends, has_next = [], LaneLoader.has_next

    def noting(self: LaneLoader) -> bool:
        try:
            found = has_next(self)
        except ProblemsFound:
            ends.append("problem")
            raise
        ends.append("data")
        return found

    monkeypatch.setattr(LaneLoader, "has_next", noting)
    assert main([str(resolved)]) == 3
    assert "data" in ends and ends.index("problem") == len(ends) - 1


def test_a_stop_amid_a_run_that_saves_nothing_is_a_failure(run: Run, server: FragileServer) -> None:
    resolved = run("run", *settings(server, 0), "checkpoint.enable=false")
    server.choose_fault[FILES[1]] = refuse_all_but_the_size
    with stop_at_failure():
        assert main([str(resolved)]) == 128 + signal.SIGTERM
