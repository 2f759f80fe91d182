"""Streams from stores that others wrote: moto's S3 server, and an emulator of Google's storage.

The packages are in the folder that TITANRUN_STORES names; make test-stores installs them there.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.components.data.lane_streams import Ranks, same
from tests.components.data.test_remote_streams import LINES, find_problem, make_file, text
from titanrun.components.checkpoints.spec.storage_path import open_filesystem
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound

pytestmark = pytest.mark.stores
STARTS = {
    "s3": "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])",
    "gs": "import sys; from gcp_storage_emulator.__main__ import main; "
    "main(['start', '--host=127.0.0.1', '--port=' + sys.argv[1], '--in-memory'])",
}
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".csv")


class Server:
    """A store in a process of its own."""

    def __init__(self, scheme: str, packages: str, port: int) -> None:
        self.scheme = scheme
        self._command = [sys.executable, "-c", STARTS[scheme], str(port)]
        self._environment = {**os.environ, "PYTHONPATH": packages}
        self._port = port
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(self.scheme)

    @property
    def is_stopped(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def find_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(params=STARTS, scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A store with a bucket. Its library keeps one client, so that the store keeps its port."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield from start_store(request.param, monkeypatch)


@pytest.fixture
def store(running: Server) -> Iterator[Server]:
    """The store, running again after the test."""
    yield running
    if running.is_stopped:
        running.start()


def start_store(scheme: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    packages = os.environ["TITANRUN_STORES"]
    # after those of titanrun, which both sides share
    monkeypatch.syspath_prepend(packages)
    sys.path.append(sys.path.pop(0))
    with find_port() as port:
        pass
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "STORAGE_EMULATOR_HOST": url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "NO_GCE_CHECK": "true",
    }.items():
        monkeypatch.setenv(name, value)
    open_filesystem.cache_clear()
    server = Server(scheme, packages, port)
    try:
        open_filesystem(server.scheme).mkdir("bucket")
        yield server
    finally:
        server.stop()
        type(open_filesystem(scheme)).clear_instance_cache()
        open_filesystem.cache_clear()


def test_files_of_a_store_give_the_batches_of_local_ones(
    store: Server, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    files, root = open_filesystem(store.scheme), f"{store.scheme}://bucket"
    for suffix in SUFFIXES:
        name = f"texts/part{suffix}"
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(make_file(suffix))
        files.pipe_file(f"bucket/{name}", make_file(suffix))
    files.pipe_file("bucket/texts/.hidden.jsonl", LINES)
    files.pipe_file("bucket/texts/notes.md", b"none of the data")
    local = Ranks(text(str(tmp_path / "texts")), tokenizer).batches(12)
    assert same(Ranks(text(f"{root}/texts"), tokenizer).batches(12), local)
    lines = Ranks(text(str(tmp_path / "texts/*.jsonl*")), tokenizer).batches(12)
    ranks = Ranks(text(f"{root}/**/part.jsonl*"), tokenizer, 2)
    assert same(ranks.batches(5), lines[:5])
    resumed = Ranks(text(f"{root}/**/part.jsonl*"), tokenizer, 4, num_workers=1)
    try:
        resumed.load(ranks.state())
        assert same(resumed.batches(7), lines[5:])
    finally:
        resumed.close()


def test_what_a_store_lacks_or_changes_ends_with_its_name(
    store: Server, tokenizer: Tokenizer
) -> None:
    files, root = open_filesystem(store.scheme), f"{store.scheme}://bucket"
    assert find_problem(f"{root}/none.jsonl", tokenizer).rule == "source-gone"
    assert "names no .jsonl" in find_problem(f"{root}/*.jsonl", tokenizer).message
    files.pipe_file("bucket/a.jsonl", LINES)
    ranks = Ranks(text(f"{root}/a.jsonl"), tokenizer)
    files.pipe_file("bucket/a.jsonl", LINES.replace(b"<", b">"))
    with pytest.raises(ProblemsFound) as found:
        ranks.next()
    assert found.value.problems[0].rule == "source-changed"


def test_a_store_that_goes_away_ends_with_its_name(store: Server, tokenizer: Tokenizer) -> None:
    files, root = open_filesystem(store.scheme), f"{store.scheme}://bucket"
    files.pipe_file("bucket/a.jsonl", LINES)
    ranks = Ranks(text(f"{root}/a.jsonl"), tokenizer, retry_timeout=2)
    store.stop()
    with pytest.raises(ProblemsFound) as found:
        ranks.next()
    assert found.value.problems[0].rule == "source-unreachable"
