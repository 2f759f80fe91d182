"""A fleet over TCP within one process: who gets what, and when."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

from tests.rl.parts import TEXT, write_recipe
from titanrun.config.host_port import HostPort
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.rl.fleet import generator_server, http_process, rollout_fleet
from titanrun.rl.fleet.frames import FrameConnection
from titanrun.rl.fleet.generator_server import GeneratorServer
from titanrun.rl.fleet.handshake import greet_generator
from titanrun.rl.fleet.http_process import HttpProcess
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.fleet.weight_frames import copy_bucket
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreReader, ObjectStoreTransport
from titanrun.worker.build.generation_description import describe_generation, find_difference

SECRET = b"0123456789abcdef"


def wait_for(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert value
    return value


@dataclass
class ScriptedGenerator:
    """A generator without a model behind a server, in threads."""

    secret: bytes | None = None
    port: int = 0
    weights: ObjectStoreReader = field(default_factory=lambda: ObjectStoreReader(lambda x: x))
    received: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        (requests, writing), (responses, self.responses) = pipe(), pipe()
        self.server = GeneratorServer(
            self.listener,
            self.secret,
            lambda other: find_difference({"seed": 0}, other),
            self.weights,
            writing,
        )
        self.threads = [
            threading.Thread(target=self.server.serve, daemon=True),
            threading.Thread(target=self.server.forward_responses, args=(responses,), daemon=True),
            threading.Thread(target=self._read, args=(requests,), daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, requests: TextIO) -> None:
        for line in requests:
            message = json.loads(line)
            self.received.append(message)
            if message["do"] == "hello":
                self.say({"hello": message["token"]})

    def get_done(self) -> list[str]:
        return [message["do"] for message in self.received]

    def say(self, message: dict[str, Any]) -> None:
        self.responses.write(json.dumps(message) + "\n")
        self.responses.flush()

    def finish(self, *numbers: int, epoch: int = 0) -> None:
        groups = [build_group(number, "completed") for number in numbers]
        self.say({"groups": groups, "epoch": epoch, "tokens": 5})

    def lose_trainer(self) -> None:
        assert self.server._session is not None
        self.server._session.connection.close()

    def stop(self) -> None:
        self.server.stop()
        self.threads[0].join(20)


def pipe() -> tuple[TextIO, TextIO]:
    reading, writing = os.pipe()
    return os.fdopen(reading), os.fdopen(writing, "w")


def build_group(number: int, status: str = "ongoing") -> dict[str, Any]:
    return {"number": number, "rollouts": [{"status": status}]}


@pytest.fixture(autouse=True)
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_process, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(http_process, "MAX_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(rollout_fleet, "FIRST_BACKOFF_SECONDS", 0.02)
    monkeypatch.setattr(rollout_fleet, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(generator_server, "POLL_SECONDS", 0.02)


@contextmanager
def open_fleet(
    folder: Path,
    port: int,
    secret: bytes | None = None,
    *,
    starts: int = 3,
    run: str = "first",
    **description: Any,
) -> Iterator[RolloutFleet]:
    """A trainer's fleet of one generator, with published weights."""
    transport = ObjectStoreTransport(copy_bucket, keep=2, ranks=RankGroup())
    transport.publish(7, {"w": torch.arange(3)}.items())
    process = HttpProcess(
        number=0,
        place=HostPort("127.0.0.1", port),
        secret=secret,
        description={"seed": 0, **description},
        run=run,
        find_weights=transport.find_references,
        log_file=folder / "logs" / "generator-0.log",
        starts_left=starts,
    )
    fleet = RolloutFleet([process], max_running=4, timeout_seconds=60)
    fleet.start()
    fleet.load(7, version=7)
    try:
        yield fleet
    finally:
        fleet.close()


def submit(fleet: RolloutFleet, *numbers: int) -> None:
    fleet.submit([build_group(number) for number in numbers], temperature=None)


def test_groups_wait_for_a_generator_and_its_weights_come_first(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open_fleet(tmp_path, port, SECRET) as fleet:
        submit(fleet, 0, 1)
        log = tmp_path / "logs" / "generator-0.log"
        wait_for(lambda: log.is_file() and "refused" in log.read_text())
        assert not fleet.processes[0].is_alive and fleet.processes[0].may_return
        generator = ScriptedGenerator(SECRET, port)
        wait_for(lambda: "generate" in generator.get_done())
        assert generator.get_done() == ["hello", "load", "generate"]
        assert torch.equal(dict(generator.weights.pull(7))["w"], torch.arange(3))
        generator.finish(1)
        assert [group["number"] for group in fleet.wait_for_any([1])] == [1]
    # the trainer has ended, and the generator has not
    wait_for(lambda: generator.get_done()[-1] == "drop")
    generator.stop()
    wait_for(lambda: generator.get_done()[-1] == "stop")


def test_groups_of_a_lost_connection_come_again_with_their_weights(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    with open_fleet(tmp_path, generator.port) as fleet:
        submit(fleet, 0, 1)
        wait_for(lambda: "generate" in generator.get_done())
        asked = generator.received[-1]["requests"]
        generator.finish(0)
        assert fleet.wait_for_any([0])
        generator.lose_trainer()
        wait_for(lambda: generator.get_done().count("generate") == 2)
        assert generator.get_done()[3:] == ["drop", "hello", "load", "generate"]
        assert generator.received[-1]["requests"] == [{**asked[1], "num_losses": 1}]
        found = fleet.collect_usage(num_tokens=0)
        assert found["rl/lost_requests"] == 1 and found["rl/restarts"] == 1
        generator.finish(1)
        assert fleet.wait_for_any([1])
    generator.stop()


@pytest.mark.parametrize(("run", "count"), [("first", 2), ("second", 0)])
def test_groups_of_an_earlier_trainer_are_counted_if_it_trained_the_same_run(
    tmp_path: Path, run: str, count: int
) -> None:
    generator = ScriptedGenerator()
    with open_fleet(tmp_path, generator.port):
        wait_for(lambda: "load" in generator.get_done())
    wait_for(lambda: generator.get_done()[-1] == "drop")
    generator.finish(5, 6)
    with open_fleet(tmp_path, generator.port, run=run) as fleet:
        submit(fleet, 0)
        wait_for(lambda: "generate" in generator.get_done())
        hellos = [message for message in generator.received if message["do"] == "hello"]
        assert [each["is_of_last_run"] for each in hellos] == [False, bool(count)]
        generator.finish(0)
        assert fleet.wait_for_any([0]) and fleet.usage.num_future == count
    generator.stop()


def test_what_is_said_for_an_earlier_trainer_reaches_no_later_one(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    with open_fleet(tmp_path, generator.port) as fleet:
        submit(fleet, 0)
        wait_for(lambda: "generate" in generator.get_done())
    wait_for(lambda: generator.get_done()[-1] == "drop")
    say, generator.say = generator.say, lambda message: None  # type: ignore[method-assign]
    with open_fleet(tmp_path, generator.port) as fleet:
        submit(fleet, 0, 1)
        wait_for(lambda: generator.get_done().count("generate") == 2)
        generator.say = say  # type: ignore[method-assign]
        generator.finish(0)
        [token] = [each["token"] for each in generator.received if each["do"] == "hello"][1:]
        generator.say({"hello": token})
        generator.finish(1)
        assert [group["number"] for group in fleet.wait_for_any([0, 1])] == [1]
    generator.stop()


def test_a_second_trainer_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    with open_fleet(tmp_path / "first", generator.port) as first:
        wait_for(lambda: first.processes[0].is_alive)
        with open_fleet(tmp_path / "second", generator.port) as second:
            log = tmp_path / "second" / "logs" / "generator-0.log"
            wait_for(lambda: log.is_file() and "it serves another trainer" in log.read_text())
            assert not second.processes[0].is_alive
            first.close()
            wait_for(lambda: second.processes[0].is_alive)
    generator.stop()


@pytest.mark.parametrize(
    ("secret", "seed", "reason"),
    [
        (b"another, of course", 0, "has another secret"),
        (SECRET, 1, "generates with another recipe: seed is 1 for the trainer and 0 for"),
    ],
)
def test_a_generator_of_no_use_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: bytes, seed: int, reason: str
) -> None:
    generator = ScriptedGenerator(SECRET)
    with open_fleet(tmp_path, generator.port, secret, seed=seed) as fleet:
        submit(fleet, 0)
        with pytest.raises(ProblemsFound, match=f"tcp://127.0.0.1:{generator.port} {reason}"):
            fleet.wait_for_any([0])
    wait_for(lambda: "was refused: it" in caplog.text)
    assert generator.get_done() == []
    generator.stop()


def test_too_few_generators_end_the_run_with_what_the_attempts_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open_fleet(tmp_path, port) as fleet:
        fleet.wait_seconds = 0.3
        submit(fleet, 0)
        with pytest.raises(ProblemsFound, match=r"fewer than 1 generators .*refused"):
            fleet.wait_for_any([0])


def test_a_generator_ends_after_a_while_without_a_trainer() -> None:
    generator = ScriptedGenerator()
    generator.server.idle_seconds = 0.05
    generator.threads[0].join(20)
    wait_for(lambda: generator.get_done() == ["stop"])


def test_a_trainer_can_neither_end_a_generator_nor_confuse_it(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    for number, message in enumerate(({"do": "stop"}, {"do": "load"}, {})):
        connection = FrameConnection(socket.create_connection(("127.0.0.1", generator.port)))
        greet_generator(connection, None)
        connection.send({"do": "hello", "generation": {"seed": 0}})
        assert connection.receive()[0]["pid"] == os.getpid()
        connection.trust()
        connection.socket.settimeout(20)
        connection.send(message)
        with pytest.raises(ConnectionError):
            while connection.receive():
                pass
        connection.close()
        wait_for(lambda number=number: generator.get_done() == ["hello", "drop"] * (number + 1))
    generator.stop()


def test_recipes_differ_in_what_they_generate_with_only(tmp_path: Path) -> None:
    def describe(*overrides: str) -> dict[str, Any]:
        file = write_recipe(tmp_path, TEXT)
        recipe = resolve_recipe(file, overrides, environment={}).run
        return json.loads(json.dumps(describe_generation(recipe)))

    own = describe()
    same = describe("training.steps=9", "optimizer.lr=0.1", "rl.sync.keep_versions=3")
    assert find_difference(own, same) is None
    other = describe("rl.sampling.temperature=0.5")
    difference = "rl.sampling.temperature is 0.5 for the trainer and 1.0 for the generator"
    assert find_difference(own, other) == difference
    other = describe("rl.rewards=[{name: char_share, characters: xyz}]")
    assert str(find_difference(own, other)).startswith("rl.rewards[0].characters is 'xyz' for")
    assert find_difference(own, None) is not None
