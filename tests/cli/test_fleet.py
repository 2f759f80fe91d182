"""`titanrun fleet`: what it refuses before it starts a generator, and the secret that it makes."""

import socket
from argparse import Namespace
from pathlib import Path

import pytest

from titanrun.cli import fleet
from titanrun.config.host_port import HostPort
from titanrun.config.problems import ProblemsFound
from titanrun.rl.fleet.config import FleetConfig

RECIPE = """
version: 1
kind: rl
model: {name: llama3, flavor: debugmodel, max_seq_len: 512}
tokenizer: characters
training: {dataset: string_task, seq_len: 64}
rl:
  rewards: [exact_match]
  sampling: {max_new_tokens: 8}
  fleet: {processes: 1, carrier: http, urls: ["tcp://127.0.0.1:7100"]}
  sync: {transport: connection}
"""
LOCAL = ("rl.fleet={processes: 1}", "rl.sync.transport=shared_memory")
SECRET = "rl.fleet.secret_file=fleet.secret"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("rl.yaml").write_text(RECIPE)
    return "rl.yaml"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--listen", "7100"], "--listen must be HOST:PORT, not 7100"),
        (["--listen", "127.0.0.1:http"], "--listen must be HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--idle-timeout", "0"], "--idle-timeout must be a number"),
        (["--listen", "0.0.0.0:0"], r"other machines reach 0\.0\.0\.0:0, and there is no secret"),
        (["--listen", "127.0.0.1:0", *LOCAL], "no generators that wait for a trainer"),
        (["--listen", "203.0.113.1:7100", SECRET], r"cannot listen at 203\.0\.113\.1:7100"),
        (["--listen", "127.0.0.1:0", "rl.fleet.processes=2"], "the fleet has 2 processes, but"),
    ],
)
def test_an_open_door_and_wrong_options_are_refused(
    recipe: str, words: list[str], told: str
) -> None:
    with pytest.raises(ProblemsFound, match=told):
        fleet.run([recipe, *words])
    assert not Path("runs").exists()


def test_a_port_in_use_is_refused(recipe: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ProblemsFound, match=f"cannot listen at 127.0.0.1:{port}: address"):
            fleet.run([recipe, "--listen", f"127.0.0.1:{port}"])


def test_the_path_of_a_new_secret_is_printed_but_not_the_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.secret"
    config = FleetConfig(processes=1, carrier="http", secret_file=str(path))
    for _ in range(2):
        fleet.prepare_secret(config, HostPort("10.0.0.2", 7100), Namespace(quiet=False))
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count(str(path)) == 1
    assert path.read_text().strip() not in printed.out + printed.err


def test_a_secret_that_others_may_read_is_refused(recipe: str) -> None:
    Path("fleet.secret").write_text("0" * 64)
    Path("fleet.secret").chmod(0o644)
    words = ["--listen", "127.0.0.1:0", SECRET]
    with pytest.raises(ProblemsFound, match=r"other users may read the secret in fleet\.secret"):
        fleet.run([recipe, *words])
