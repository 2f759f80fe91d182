"""A process of a fleet: what it starts, when it loads weights, and what it says after a turn."""

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rl.parts import TEXT, rollouter, write_recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.rl.fleet.rollout_messages import RolloutMessages
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_types import Prompt
from titanrun.worker import rollout_worker
from titanrun.worker.rollout_worker import RolloutWorker, WorkerWeights, build_updates


class Shelf:
    """Weights by key. They are gone after `drop`."""

    def __init__(self, *keys: int) -> None:
        self.keys = list(keys)

    def list_versions(self) -> list[int]:
        return self.keys

    def pull(self, key: int) -> Iterator[tuple[str, Tensor]]:
        if key not in self.keys:
            raise KeyError(key)
        yield "w", torch.zeros(1)


@contextmanager
def open_messages() -> Iterator[tuple[RolloutMessages, Callable[..., None]]]:
    """Give messages that a thread reads, and what sends them. They end with the block."""
    reading, writing = os.pipe()
    has_ended = threading.Event()
    with os.fdopen(reading) as lines:
        messages = RolloutMessages(lines)
        messages.start(has_ended.set)
        with os.fdopen(writing, "w") as requests:

            def send(**message: Any) -> None:
                requests.write(json.dumps(message) + "\n")
                requests.flush()

            yield messages, send
        assert has_ended.wait(60)


@contextmanager
def serve(runner: RolloutRunner, shelf: Shelf) -> Iterator[tuple[Callable[..., None], Any]]:
    """Give what sends messages to a worker, and what waits for that many answers of it."""
    responses = io.StringIO()
    with open_messages() as (messages, send):
        worker = RolloutWorker(
            runner,
            WorkerWeights(messages, shelf, responses),  # type: ignore[arg-type]
            responses,
        )
        thread = threading.Thread(target=worker.run)

        def wait_for(count: int) -> list[dict[str, Any]]:
            if not thread.ident:
                thread.start()
            end = time.monotonic() + 60
            while responses.getvalue().count("\n") < count and time.monotonic() < end:
                time.sleep(0.01)
            return [json.loads(line) for line in responses.getvalue().splitlines()]

        yield send, wait_for
    thread.join(60)


def ask(runner: RolloutRunner, *numbers: int, is_sticky: bool = True) -> dict[str, Any]:
    """Message that asks for groups of two conversations, of which four may run at once."""
    requests = [
        {
            "group": runner.start_group(
                Prompt("?", "5"), group_number=number, policy_version=0
            ).to_dict(),
            "temperature": None,
            "epoch": 0,
            "is_sticky": is_sticky,
        }
        for number in numbers
    ]
    return {"do": "generate", "requests": requests, "max_running": 4}


def get_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if "groups" in message]


def get_numbers(messages: list[dict[str, Any]]) -> list[list[int]]:
    return [[group["number"] for group in message["groups"]] for message in messages]


def get_versions(messages: list[dict[str, Any]]) -> set[int]:
    return {
        turn["completion"]["version"]
        for message in messages
        for group in message["groups"]
        for rollout in group["rollouts"]
        for turn in rollout["turns"]
    }


def test_groups_wait_in_the_process_while_others_run(tmp_path: Path) -> None:
    runner = rollouter(tmp_path, lambda prompt: "x")
    with serve(runner, Shelf(1)) as (send, wait_for):
        send(do="load", key=1, version=1)
        send(**ask(runner, 0, 1, 2))
        found = get_turns(wait_for(4))
    assert get_numbers(found) == [[0, 1], [2]] and found[0]["tokens"] == 8
    assert get_versions(found) == {1}


def test_groups_wait_for_the_successor_of_weights_that_are_gone(tmp_path: Path) -> None:
    """They were admitted with the weights that are gone: older ones must not begin them."""
    runner = rollouter(tmp_path, lambda prompt: "x")
    with serve(runner, Shelf(2)) as (send, wait_for):
        send(do="load", key=1, version=1)
        send(**ask(runner, 0))
        assert wait_for(2) == [{"loading": True}, {"loading": False}]
        send(do="load", key=2, version=2)
        found = get_turns(wait_for(5))
    assert get_numbers(found) == [[0]] and get_versions(found) == {2}


@pytest.mark.parametrize("is_sticky", [True, False])
def test_a_conversation_is_reported_after_each_turn(tmp_path: Path, is_sticky: bool) -> None:
    runner = rollouter(tmp_path, lambda prompt: "9", "guess_number")
    with serve(runner, Shelf()) as (send, wait_for):
        send(**ask(runner, 0, is_sticky=is_sticky))
        turns = []
        for count in range(1, 3):
            message = wait_for(count)[count - 1]
            turns.append([len(each["turns"]) for each in message["groups"][0]["rollouts"]])
            if not is_sticky:
                time.sleep(0.2)
                assert len(wait_for(count)) == count, "it waits until it is asked again"
                request = {**ask(runner, 0, is_sticky=False)["requests"][0]}
                request["group"] = message["groups"][0]
                send(do="generate", requests=[request], max_running=4)
    assert turns == [[1, 1], [2, 2]]


def test_only_the_newest_weights_are_loaded_and_none_that_are_gone(tmp_path: Path) -> None:
    with open_messages() as (messages, send):
        weights = WorkerWeights(messages, Shelf(2, 3), io.StringIO())  # type: ignore[arg-type]
        assert weights.take() is None
        send(do="load", key=2, version=2)
        send(do="generate", number=1)
        send(do="load", key=3, version=3)
        send(do="drop")
        while messages._queue.qsize() < 4:
            time.sleep(0.01)
        found = weights.take()
        assert found is not None and found.version == 3 and weights.take() is None
        kept = [each["do"] for each in messages.iter_new(should_wait=True) if each]
        assert kept == ["generate", "drop"]
        send(do="load", key=1, version=1)
        (message,) = messages.iter_new(should_wait=True)
        assert message is not None and weights.pull(message) is None and weights.is_behind
        assert weights.pull({"key": 3, "version": 3}) is not None and not weights.is_behind


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("kv_on_update", ["reset", "keep"])
def test_weights_change_within_a_completion_where_the_recipe_says_so(
    tmp_path: Path, is_enabled: bool, kv_on_update: str
) -> None:
    overrides = [
        "rl.fleet.processes=1",
        f"rl.sync={{transport: shared_memory, kv_on_update: {kv_on_update}}}",
        f"rl.schedule={{target_offpolicy: 2, update_in_flight: {str(is_enabled).lower()}}}",
    ]
    recipe = resolve_recipe(write_recipe(tmp_path, TEXT), overrides, environment={}).run
    assert recipe.rl is not None
    weights = WorkerWeights(RolloutMessages(io.StringIO()), Shelf(), io.StringIO())  # type: ignore[arg-type]
    updates = build_updates(recipe.rl, weights)
    assert (updates is not None) == is_enabled
    assert updates is None or updates.resets_cache == (kv_on_update == "reset")


def test_the_memory_of_a_killed_trainer_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, sweeps = Shelf(4), []

    def sweep() -> None:
        sweeps.append(1)
        # its locks may be free a little later than its pipe is closed
        if len(sweeps) == 3:
            shelf.keys.clear()

    monkeypatch.setattr(rollout_worker, "sweep_abandoned_blocks", sweep)
    monkeypatch.setattr(rollout_worker, "SWEEP_SECONDS", 60)
    messages = RolloutMessages(io.StringIO())
    worker = RolloutWorker(
        rollouter(tmp_path, lambda prompt: "x"),
        WorkerWeights(messages, shelf, io.StringIO()),  # type: ignore[arg-type]
        io.StringIO(),
    )
    worker.close()
    # of a trainer that ended by itself nothing is left
    worker.close()
    assert len(sweeps) == 3


def test_the_trainer_is_told_about_loading_and_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes 2 s, copying another 3 s. Weights that are gone end at once."""
    now = [100.0]
    monkeypatch.setattr(rollout_worker.time, "monotonic", lambda: now[0])
    shelf, responses = Shelf(1), io.StringIO()

    def pull(key: int) -> Iterator[tuple[str, Tensor]]:
        now[0] += 2.0
        return Shelf.pull(shelf, key)

    monkeypatch.setattr(shelf, "pull", pull, raising=False)
    weights = WorkerWeights(RolloutMessages(io.StringIO()), shelf, responses)  # type: ignore[arg-type]
    update = weights.pull({"key": 1, "version": 1})
    assert update is not None and responses.getvalue() == '{"loading": true}\n'
    for _ in update.weights:
        now[0] += 3.0
    assert responses.getvalue().splitlines()[1:] == ['{"loading": false}']
    assert weights.load_seconds == 5.0
    assert weights.pull({"key": 2, "version": 2}) is None
    said = [json.loads(line)["loading"] for line in responses.getvalue().splitlines()]
    assert said == [True, False, True, False] and weights.load_seconds == 7.0


@pytest.mark.parametrize(("message", "count"), [({"is_orphaned": True}, 3), ({}, 0)])
def test_a_new_trainer_is_told_how_many_groups_an_earlier_one_had(
    tmp_path: Path, message: dict[str, Any], count: int
) -> None:
    """Of a connection that ended, and not of a rollback, whose trainer knows."""
    runner, responses = rollouter(tmp_path, lambda prompt: "x"), io.StringIO()
    weights = WorkerWeights(RolloutMessages(io.StringIO()), Shelf(), responses)  # type: ignore[arg-type]
    worker = RolloutWorker(runner, weights, responses)
    worker._receive(ask(runner, 0, 1, 2))
    worker._forget({"do": "drop", **message})
    worker._receive(ask(runner, 3))
    worker._forget({"do": "hello", "token": "t"})
    said = [json.loads(line) for line in responses.getvalue().splitlines()]
    assert said == [{"hello": "t"}, {"discarded": count + 1}] and not worker.waiting
    worker._forget({"do": "hello", "token": "u"})
    assert json.loads(responses.getvalue().splitlines()[-1]) == {"discarded": 0}
    # nor of another run
    worker._receive(ask(runner, 4))
    for is_of_last_run in (False, True):
        worker._forget({"do": "hello", "token": "v", "is_of_last_run": is_of_last_run})
        assert json.loads(responses.getvalue().splitlines()[-1]) == {"discarded": 0}
