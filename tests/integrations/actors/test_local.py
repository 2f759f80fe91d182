"""Actors in child processes: calls, order, failures, ranks, and what is left of them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.actors import loops
from tests.integrations.actors.buffers import Episode, OddBuffer
from tests.rl.parts import TEXT
from titanrun.config.problems import ProblemsFound
from titanrun.integrations.actors.actor_calls import ActorFuture, RankResults
from titanrun.integrations.actors.endpoints import ENDPOINTS
from titanrun.integrations.actors.local import ActorDied, LocalActor, spawn
from titanrun.integrations.torchforge.replay_buffer import ReplayBuffer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


@pytest.fixture(scope="module")
def buffer() -> Iterator[LocalActor]:
    with spawn(OddBuffer, 2, seed=0) as made:
        yield made


@pytest.fixture(autouse=True)
def is_empty(buffer: LocalActor) -> None:
    buffer.clear.broadcast()


def test_the_table_names_methods_of_its_classes() -> None:
    for path, names in ENDPOINTS.items():
        module, _, name = path.partition(":")
        actor_class = getattr(import_module(module), name)
        public = {
            each
            for each in vars(actor_class)
            if not each.startswith("_")
            and callable(getattr(actor_class, each))
            and each not in actor_class.__dataclass_fields__  # type: ignore[attr-defined]
        }
        assert public == set(names)


def test_a_loop_of_torchtitans_names_has_the_losses_of_the_plain_trainer(
    recipe: str, tmp_path: Path
) -> None:
    plain = loops.open_trainer(recipe, str(tmp_path / "plain"))
    expected = loops.run_plain(plain)
    plain.close()
    folder = tmp_path / "actor"
    with spawn(loops.open_trainer, recipe, folder=str(folder)) as actor:
        assert loops.run_handles(actor) == expected
        actor.close.call_one().get(timeout=240)
    assert sorted(path.name for path in (folder / "saved").glob("step-*")) == ["step-1", "step-2"]
    assert len(list((folder / "pushed").iterdir())) == len(
        list((tmp_path / "plain" / "pushed").iterdir())
    )


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one(recipe: str, tmp_path: Path) -> None:
    plain = loops.open_trainer(recipe, str(tmp_path / "plain"))
    (alone,) = [plain.forward_backward([loops.DATA], loops.NUM_TOKENS)]
    norm = plain.optim_step()["grad_norm"]
    plain.close()
    with spawn(loops.open_trainer, recipe, str(tmp_path / "ranks"), 2, ranks=2) as actor:
        found = actor.forward_backward.call(loops.DATA, loops.NUM_TOKENS).get(timeout=240)
        assert len(found) == 2 and found.get(0) == found.get(1)
        assert found.item(gpus=1)["loss/mean"] == pytest.approx(alone["loss/mean"], rel=1e-5)
        update = actor.optim_step.call_one().get(timeout=240)
        assert update["grad_norm"] == pytest.approx(norm, rel=1e-5)
        pids = {each["pid"] for each in actor.health.call().get(timeout=240).values()}
        assert len(pids) == 2 and os.getpid() not in pids
        actor.close.call().get(timeout=240)


def test_the_version_is_told_beside_a_long_call(recipe: str, tmp_path: Path) -> None:
    with spawn(loops.open_waiting_trainer, recipe, str(tmp_path)) as actor:
        loops.check_that_versions_are_told_beside_a_long_call(actor, tmp_path)


def test_calls_run_in_their_order_and_under_all_names(buffer: LocalActor) -> None:
    for version in (5, 3, 9):
        buffer.add.broadcast(Episode(version))
    state = buffer.state_dict
    found = [state.call().get()[0], state.fanout().get().item(), state.call_one().get()]
    found += [state.route().get(), state.choose().get()]
    for each in found:
        assert [episode.policy_version for episode, _ in each["buffer"]] == [5, 3, 9]

    async def ask() -> Any:
        return await state.call_one()

    assert asyncio.run(ask())["seed"] == 0


def test_an_error_reaches_the_caller_with_its_traceback_and_the_actor_lives(
    buffer: LocalActor, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError) as found:
        buffer.evict.call_one(0).get(timeout=240)
    (note,) = found.value.__notes__
    assert note.startswith("raised in rank 0 of OddBuffer:\n")
    assert "self.add(1 // curr_policy_version)" in note and "buffers.py" in note
    with pytest.raises(RuntimeError, match="UnpicklableError") as general:
        buffer.sample.call_one(1).get(timeout=240)
    assert "raise UnpicklableError" in general.value.__notes__[0]
    with pytest.raises(TypeError, match="the result of OddBuffer cannot be sent"):
        buffer.sample.call_one(8).get(timeout=240)
    buffer.evict.broadcast(0)
    with pytest.raises(TypeError, match="add"):
        buffer.add.call_one().get(timeout=240)
    assert "OddBuffer.evict failed" in caplog.text
    assert buffer.health.call_one().get(timeout=240)["running"] is None


def test_a_killed_actor_fails_the_calls_that_wait_and_those_that_follow() -> None:
    buffer = spawn(OddBuffer, 2)
    killed, waiting = buffer.sample.call_one(7), buffer.state_dict.call_one()
    for each in (killed, waiting, buffer.state_dict.call_one()):
        with pytest.raises(ActorDied, match="rank 0 of OddBuffer"):
            each.get(timeout=240)
    assert "exit code -9" in str(killed.exception())
    buffer.shutdown()


def test_problems_of_the_constructor_and_of_its_arguments_are_those_of_the_plain_class() -> None:
    with pytest.raises(ProblemsFound, match="batch_size is 0, but must be at least 1"):
        spawn(ReplayBuffer, 0)
    with pytest.raises(ProblemsFound, match="an argument of ReplayBuffer cannot be sent") as found:
        spawn(ReplayBuffer, 2, collate=lambda batches: batches)
    assert "top level of a module" in str(found.value.problems[0].hint)
    with pytest.raises(ProblemsFound, match="dict does not build an actor"):
        spawn(dict)


def test_an_endpoint_that_is_none_is_named(buffer: LocalActor) -> None:
    with pytest.raises(AttributeError, match="no endpoint pop, only setup, add, sample"):
        buffer.pop.call_one()


def test_results_of_ranks_are_found_by_rank_and_by_axis() -> None:
    results = RankResults((10, 20))
    assert results.get(1) == results.item(1) == results.item(hosts=1) == results[1] == 20
    assert list(results.items()) == [(0, 10), (1, 20)] and list(results.values()) == [10, 20]
    with pytest.raises(ValueError, match="name one of 2 ranks"):
        results.item()


def test_a_call_fails_as_soon_as_one_rank_does() -> None:
    from concurrent.futures import Future

    hanging: Future[Any] = Future()
    failed: Future[Any] = Future()
    failed.set_exception(KeyError("lost"))
    with pytest.raises(KeyError):
        ActorFuture([hanging, failed], RankResults).get(timeout=1)
    with pytest.raises(TimeoutError):
        ActorFuture([hanging], RankResults).get(timeout=0.01)


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_no_process_outlives_its_parent(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from titanrun.integrations.actors.local import spawn\n"
        "from titanrun.integrations.torchforge.replay_buffer import ReplayBuffer\n"
        "if __name__ == '__main__':\n"
        "    actor = spawn(ReplayBuffer, 2)\n"
        "    print(actor.health.call_one().get()['pid'], flush=True)\n"
        + ("    os.kill(os.getpid(), signal.SIGKILL)\n" if end == "kill" else "")
    )
    run = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == (0 if end == "exit" else -signal.SIGKILL), run.stderr
    deadline = time.monotonic() + 240
    while Path(f"/proc/{run.stdout.strip()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_tensors_pass_as_they_are(buffer: LocalActor) -> None:
    episode = Episode(1)
    episode.logprobs = torch.arange(3.0) / 7  # type: ignore[attr-defined]
    buffer.add.call_one(episode).get(timeout=240)
    ((found, _),) = buffer.state_dict.call_one().get(timeout=240)["buffer"]
    assert torch.equal(found.logprobs, torch.arange(3.0) / 7)
