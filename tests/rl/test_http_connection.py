"""Connections to generators: frames, secrets, addresses, and weights in pieces."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrun.config.host_port import parse_host_port, parse_tcp_url
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.fleet import weight_frames
from titanrun.rl.fleet.frames import FrameConnection, FrameError
from titanrun.rl.fleet.handshake import (
    RefusedError,
    build_greeting,
    greet_generator,
    welcome_trainer,
)
from titanrun.rl.fleet.outbox import Outbox
from titanrun.rl.fleet.spec.secret_file import create_secret_file, read_secret
from titanrun.rl.fleet.weight_frames import WeightAssembly, copy_bucket, iter_weight_frames
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreReader, ObjectStoreTransport

SECRET = b"0123456789abcdef"


@contextmanager
def connected_pair() -> Iterator[tuple[FrameConnection, FrameConnection]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    pair = FrameConnection(one), FrameConnection(other)
    yield pair
    for connection in pair:
        connection.close()


def test_frames_carry_messages_and_arrays() -> None:
    with connected_pair() as (one, other):
        one.send({"text": "é", "list": [1, None]})
        one.send({"do": "weights"}, memoryview(b"\0\1\2"))
        assert other.receive() == ({"text": "é", "list": [1, None]}, b"")
        assert other.receive() == ({"do": "weights"}, b"\0\1\2")
        one.close()
        with pytest.raises(ConnectionError):
            other.receive()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\x7f", "too long"),
        (b"\3\0\0\0{x}", "not JSON"),
        (b"\2\0\0\0[]", "not an object"),
        (b'\x0b\0\0\0{"size":-1}', "not an object with a size"),
        (b'\x0a\0\0\0{"size":4}', "no arrays"),
        (b"GET / HTTP/1.1\r\n", "too long"),
    ],
)
def test_what_a_stranger_sends_is_refused_before_it_takes_memory(data: bytes, reason: str) -> None:
    with connected_pair() as (one, other):
        other.limit_greeting(20)
        one.socket.sendall(data)
        with pytest.raises(FrameError, match=reason):
            other.receive()


def test_a_stranger_who_says_little_is_not_waited_for() -> None:
    with connected_pair() as (one, other):
        other.limit_greeting(0.1)
        one.socket.sendall(b"\5\0")
        with pytest.raises(TimeoutError):
            other.receive()


def shake_hands(
    generator: bytes | None, trainer: bytes | None
) -> tuple[Exception | None, Exception | None]:
    """What both sides say about the other."""
    said: dict[str, Exception | None] = {}

    def note(name: str, act: Any, connection: FrameConnection, secret: bytes | None) -> None:
        said[name] = None
        try:
            act(connection, secret)
        except (OSError, RefusedError) as error:
            said[name] = error
            connection.close()

    with connected_pair() as (one, other):
        thread = threading.Thread(target=note, args=("generator", welcome_trainer, one, generator))
        thread.start()
        note("trainer", greet_generator, other, trainer)
        thread.join(20)
    return said["generator"], said["trainer"]


@pytest.mark.parametrize("secret", [SECRET, None])
def test_those_with_the_same_secret_let_each_other_in(secret: bytes | None) -> None:
    assert shake_hands(secret, secret) == (None, None)


def test_another_secret_is_refused_by_both() -> None:
    generator, trainer = shake_hands(SECRET, b"another, of course")
    assert isinstance(generator, RefusedError) and "another secret" in generator.reason
    assert isinstance(trainer, RefusedError) and "another secret" in trainer.reason
    _, trainer = shake_hands(SECRET, None)
    assert isinstance(trainer, RefusedError) and "asks for a secret" in trainer.reason
    # one that takes anybody is not the generator that the trainer looks for
    _, trainer = shake_hands(None, SECRET)
    assert isinstance(trainer, RefusedError) and "has no secret" in trainer.reason


def test_a_generator_must_prove_its_secret_and_cannot_send_the_trainers_proof_back() -> None:
    with connected_pair() as (one, other):

        def pretend() -> None:
            one.send({**build_greeting("0" * 64), "has_secret": True})
            greeting, _ = one.receive()
            assert SECRET.decode() not in json.dumps(greeting)
            one.send({"proof": greeting["proof"]})

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(RefusedError, match="another secret"):
            greet_generator(other, SECRET)
        thread.join(20)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected_pair() as (one, other):
        one.send({"titanrun": "0.0.1", "protocol": 1, "challenge": "", "has_secret": False})
        with pytest.raises(RefusedError, match=r"runs titanrun '0.0.1', not"):
            greet_generator(other, None)
        one.send({"server": "another program"})
        with pytest.raises(FrameError, match="not a titanrun"):
            greet_generator(other, None)


def test_a_secret_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "fleet.secret"
    with pytest.raises(ProblemsFound, match="cannot be read: No such file"):
        read_secret(path)
    assert create_secret_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    secret = read_secret(path)
    assert len(secret) == 64 and not create_secret_file(path) and read_secret(path) == secret
    path.chmod(0o640)
    with pytest.raises(ProblemsFound, match="other users may read the secret"):
        read_secret(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(ProblemsFound, match="fewer than 16 characters"):
        read_secret(path)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://10.0.0.2:7100", ("10.0.0.2", 7100, False)),
        ("tcp://[::1]:7100", ("::1", 7100, True)),
        ("tcp://localhost:1", ("localhost", 1, True)),
    ],
)
def test_an_address_is_read_and_written(url: str, expected: tuple[str, int, bool]) -> None:
    place = parse_tcp_url(url)
    assert (*place, place.is_loopback) == expected and place.url == url
    assert parse_host_port(url.removeprefix("tcp://")) == place


@pytest.mark.parametrize("url", ["tcp://host", "http://host:1", "tcp://h:1/x", "tcp://h:99999", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        parse_tcp_url(url)


def test_waiting_weights_give_way_to_newer_ones_and_stay_before_groups() -> None:
    outbox = Outbox()
    for message in (
        {"do": "load", "key": 1},
        {"do": "generate", "of": 1},
        {"do": "load", "key": 2},
        {"do": "drop"},
    ):
        outbox.put(message)
    taken = [outbox.take() for _ in range(3)]
    assert taken == [{"do": "load", "key": 2}, {"do": "generate", "of": 1}, {"do": "drop"}]
    outbox.close()
    assert outbox.take() is None


def test_weights_arrive_bit_by_bit_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_frames, "MAX_ARRAY_BYTES", 24)
    weights = {
        "a": torch.randn(5, 3),
        "b": torch.randn(7).to(torch.bfloat16),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
    }
    transport = ObjectStoreTransport(copy_bucket, keep=1, ranks=RankGroup())
    transport.publish(4, weights.items())
    expected = {name: tensor.clone() for name, tensor in weights.items()}
    weights["a"].zero_()  # the optimizer goes on while they are sent
    pieces = list(iter_weight_frames(transport.find_references(4)))
    assert len(pieces) > len(weights) and max(len(piece) for _, piece in pieces) <= 24
    assembly = WeightAssembly()
    for header, piece in pieces:
        assembly.add(json.loads(json.dumps(header)), bytes(piece))
    reader = ObjectStoreReader(lambda bucket: bucket)
    reader.receive(4, [assembly.take()])
    found = dict(reader.pull(4))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    (first, piece), _, (third, _) = pieces[:3]
    assembly.add(first, bytes(piece))
    with pytest.raises(FrameError, match="not whole"):
        assembly.take()
    with pytest.raises(FrameError, match="missing"):
        assembly.add(third, b"")
    with pytest.raises(FrameError, match="no place"):
        assembly.add({}, b"")
