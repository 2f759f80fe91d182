"""Several processes build and open one token index at the same moment."""

import errno
import fcntl
import json
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.components.data.conftest import ByteTokenizer
from tests.components.data.test_token_index import opened, record_of, write_old
from titanrun.components.data import token_index
from titanrun.components.data.token_cache import find_complete_index, lock_index
from titanrun.components.data.token_cache_maintenance import verify_token_cache
from titanrun.components.data.token_index import IndexSpec
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

SECONDS = 60
CONTEXT = multiprocessing.get_context("forkserver")
# without torch
CONTEXT.set_forkserver_preload(["tests.components.data.test_token_index"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of which the first is an index of several blocks."""
    (tmp_path / "data").mkdir()
    for name in "abc":
        write_old(tmp_path / "data" / f"{name}.txt", name * 200_000)
    return tmp_path


def open_and_report(folder: Path, name: str, prepare: Callable[..., None], *gates: Any) -> None:
    """Open the index in a process of its own, and write down what it has."""
    prepare(*gates)
    index = opened(folder, ByteTokenizer())
    found = [index.record.digest, len(index.tokens), int(np.sum(index.tokens[:]))]
    (folder / f"{name}.json").write_text(json.dumps(found))


def start(folder: Path, name: str, prepare: Callable[..., None], *gates: Any) -> BaseProcess:
    process = CONTEXT.Process(target=open_and_report, args=(folder, name, prepare, *gates))
    process.start()
    return process


def finish(*processes: BaseProcess) -> None:
    for process in processes:
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def look_together(barrier: Any) -> None:
    """Each process looks for the index, finds none, and only then goes on."""
    find, looks = token_index.find_token_index, []

    def find_with_others(folder: Path, key: str) -> Any:
        found = find(folder, key)
        looks.append(found)
        if len(looks) == 1:
            assert found is None
            barrier.wait(SECONDS)
        return found

    token_index.find_token_index = find_with_others


def look_together_and_count(barrier: Any, builds: Any) -> None:
    """Count the processes that tokenize, too."""
    look_together(barrier)
    build = token_index.build_token_index

    def build_counted(*arguments: Any, **options: Any) -> None:
        with builds:
            builds.value += 1
        build(*arguments, **options)

    token_index.build_token_index = build_counted


def write_together(started: Any, written: Any) -> None:
    """Each process has written half of its tokens before any goes on, and all before it ends."""
    write = IndexSpec.write

    def write_with_others(spec: IndexSpec, files: Any, writer: Any) -> Any:
        encode, count = writer.write, [0]

        def write_document(ids: Any) -> None:
            encode(ids)
            count[0] += 1
            if count[0] == 2:
                writer._file.flush()
                started.wait(SECONDS)

        writer.write = write_document
        done = write(spec, files, writer)
        written.wait(SECONDS)
        return done

    IndexSpec.write = write_with_others  # type: ignore[method-assign]


def have_no_locks(error: int | None, looked: Any, started: Any, written: Any) -> None:
    """Processes in containers, all with the same number, whose file system has no locks."""

    def lock(*_: object) -> None:
        if error is not None:
            raise OSError(error, os.strerror(error))

    fcntl.flock = lock
    os.getpid = lambda: 17
    look_together(looked)
    write_together(started, written)


def check_folder(folder: Path, tokenizer: Tokenizer, names: list[str]) -> None:
    """Compare what processes have read with an index that one process builds, and its files."""
    cache = folder / "cache"
    (checked,) = verify_token_cache(cache)
    assert (checked["damage"], checked["changed"]) == (None, [])
    kept = sorted(path.name for path in cache.iterdir())
    record = record_of(folder)
    assert kept == sorted(
        [record.name, f"{record.stem}.npy", f"{record.stem}.blocks"]
        + [path.name for path in cache.glob("*.files.json")]
    )
    contents = [(cache / name).read_bytes() for name in kept if name.startswith(record.stem)]
    cache.rename(folder / "of-several")
    index = opened(folder, tokenizer)
    assert contents == [
        (cache / name).read_bytes() for name in kept if name.startswith(record.stem)
    ]
    expected = [index.record.digest, len(index.tokens), int(np.sum(index.tokens[:]))]
    assert [json.loads((folder / f"{name}.json").read_text()) for name in names] == [
        expected
    ] * len(names)


def test_of_builds_that_start_together_one_writes(folder: Path, tokenizer: Tokenizer) -> None:
    names = ["one", "two", "three"]
    barrier, builds = CONTEXT.Barrier(len(names)), CONTEXT.Value("i", 0)
    finish(*[start(folder, name, look_together_and_count, barrier, builds) for name in names])
    assert builds.value == 1
    check_folder(folder, tokenizer, names)


@pytest.mark.parametrize("error", [None, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_file_locks_all_write_the_same(
    error: int | None, folder: Path, tokenizer: Tokenizer
) -> None:
    """Two containers have processes with the same number, and wrote into one temporary file."""
    names = ["one", "two"]
    barriers = [CONTEXT.Barrier(len(names)) for _ in range(3)]
    finish(*[start(folder, name, have_no_locks, error, *barriers) for name in names])
    check_folder(folder, tokenizer, names)


def wait_for_reader(is_writing: Any, is_read: Any) -> None:
    """Stop in the middle of the tokens until a reader waits."""
    write = IndexSpec.write

    def write_slowly(spec: IndexSpec, files: Any, writer: Any) -> Any:
        encode = writer.write

        def write_document(ids: Any) -> None:
            encode(ids)
            is_writing.set()
            assert is_read.wait(SECONDS)

        writer.write = write_document
        return write(spec, files, writer)

    IndexSpec.write = write_slowly  # type: ignore[method-assign]


def read_amid_writing(is_writing: Any, is_read: Any) -> None:
    """Open the index while another process writes it, and never write it."""
    assert is_writing.wait(SECONDS)
    token_index.send_heartbeat = is_read.set

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a second build")

    token_index.build_token_index = refuse


def test_a_reader_waits_for_the_build_that_it_comes_into(
    folder: Path, tokenizer: Tokenizer
) -> None:
    events = [CONTEXT.Event(), CONTEXT.Event()]
    finish(
        start(folder, "builder", wait_for_reader, *events),
        start(folder, "reader", read_amid_writing, *events),
    )
    check_folder(folder, tokenizer, ["builder", "reader"])


def die_amid_writing(is_writing: Any, is_read: Any) -> None:
    """Die in the middle of the tokens, once a reader waits."""

    def die(_: object, files: Any, writer: Any) -> None:
        writer.write([1] * 100_000)
        is_writing.set()
        assert is_read.wait(SECONDS)
        os._exit(9)

    IndexSpec.write = die  # type: ignore[method-assign, assignment]


def take_over(is_writing: Any, is_read: Any) -> None:
    """Open the index while another process writes it."""
    assert is_writing.wait(SECONDS)
    token_index.send_heartbeat = is_read.set


def test_a_reader_goes_on_where_the_build_that_it_waits_for_dies(
    folder: Path, tokenizer: Tokenizer
) -> None:
    events = [CONTEXT.Event(), CONTEXT.Event()]
    builder = start(folder, "builder", die_amid_writing, *events)
    finish(start(folder, "reader", take_over, *events))
    builder.join(SECONDS)
    assert builder.exitcode == 9
    # `data clear` removes it after an hour
    (left,) = (folder / "cache").glob(".*.tmp-*")
    left.unlink()
    check_folder(folder, tokenizer, ["reader"])


def test_a_lock_that_was_removed_is_not_taken(tmp_path: Path) -> None:
    """A third process locks a new file at its place, and two would write."""
    waits = []

    def change_hands() -> None:
        """The holder ends, and another process locks the next file."""
        waits.append(1)
        if len(waits) == 1:
            (tmp_path / ".key.lock").unlink()
            first.close()
            second = (tmp_path / ".key.lock").open("w")
            fcntl.flock(second, fcntl.LOCK_EX)
            held.append(second)
        else:
            held.pop().close()

    held: list[Any] = []
    # closed by what waits for it
    first = (tmp_path / ".key.lock").open("w")
    fcntl.flock(first, fcntl.LOCK_EX)
    with lock_index(tmp_path, "key", on_wait=change_hands):
        assert len(waits) == 2
    assert not list(tmp_path.iterdir())


def test_an_index_that_is_cleared_as_it_is_opened_leaves_no_empty_record(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folder, tokenizer)
    find = token_index.find_token_index

    def find_and_clear(cache: Path, key: str) -> Any:
        found = find(cache, key)
        record_of(folder).unlink()
        return found

    monkeypatch.setattr(token_index, "find_token_index", find_and_clear)
    assert np.array_equal(opened(folder, tokenizer).tokens[:], first.tokens[:])
    monkeypatch.undo()
    assert find_complete_index(folder / "cache", first.path.stem) is None
    assert not first.path.with_suffix(".json").exists()


def test_a_folder_of_another_user_is_read(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folder, tokenizer)
    write_old(folder / "data" / "a.txt", "a" * 200_000, age=50)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # tests may run as root, who may write everything
    for name in ("open", "touch"):
        monkeypatch.setattr(Path, name, allow_reading(getattr(Path, name), refuse))
    monkeypatch.setattr(token_index.os, "utime", refuse)
    assert np.array_equal(opened(folder, tokenizer).tokens[:], first.tokens[:])


def allow_reading(work: Callable[..., Any], refuse: Callable[..., None]) -> Callable[..., Any]:
    """Return a method of a path that may not write."""
    return lambda path, mode="r", *rest, **options: (
        work(path, mode, *rest, **options) if mode in ("r", "rb") else refuse()
    )
