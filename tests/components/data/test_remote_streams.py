"""Streams of remote files give the batches of local ones, or end with the name of the fault."""

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.components.data.fragile_server import FragileServer, serve_files
from tests.components.data.lane_streams import Ranks, same, write_numbered
from titanrun.components.checkpoints.spec import storage_path
from titanrun.components.data import http_source, line_reader, remote_file, source_faults
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.data_waits import on_wait

TEXTS = [f"<{number}>" + "x" * (number * 7 % 50) for number in range(400)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def make_file(suffix: str) -> bytes:
    table, content = pa.table({"text": TEXTS, "other": list(range(400))}), io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, content, row_group_size=90)
    elif suffix == ".csv":
        pyarrow.csv.write_csv(table, content)
    elif suffix == ".jsonl.zst":
        return bytes(pa.compress(LINES, codec="zstd", asbytes=True))
    else:
        return gzip.compress(LINES) if suffix == ".jsonl.gz" else LINES
    return content.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FragileServer]:
    """A server, and readers that ask for little at a time and do not wait long."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(line_reader, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(http_source, "STALL_SECONDS", 0.4)
    monkeypatch.setattr(source_faults, "FIRST_DELAY_SECONDS", 0.01)
    with serve_files() as server:
        yield server


def text(path: str, **options: Any) -> TextDatasetConfig:
    return TextDatasetConfig(path=path, streaming=True, window=16, **options)


def batches(
    path: str, tokenizer: Tokenizer, count: int = 12, **options: Any
) -> list[NDArray[np.int64]]:
    return Ranks(text(path), tokenizer, **options).batches(count)


def local_batches(
    name: str, content: bytes, folder: Path, tokenizer: Tokenizer, count: int = 12
) -> Any:
    (folder / name).write_bytes(content)
    return batches(str(folder / name), tokenizer, count)


def find_problem(path: str, tokenizer: Tokenizer, **options: Any) -> Problem:
    with pytest.raises(ProblemsFound) as found:
        batches(path, tokenizer, **options)
    assert found.value.exit_code == 3
    (problem,) = found.value.problems
    return problem


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".csv"])
def test_remote_files_give_the_batches_of_local_ones(
    suffix: str, server: FragileServer, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    content = server.files[f"part{suffix}"] = make_file(suffix)
    local = local_batches(f"part{suffix}", content, tmp_path, tokenizer)
    url = f"{server.url}/part{suffix}"
    assert same(batches(url, tokenizer), local)
    ranks = Ranks(text(url), tokenizer, 2)
    assert same(ranks.batches(5), local[:5])
    resumed = Ranks(text(url), tokenizer)
    resumed.load(ranks.state())
    assert same(resumed.batches(7), local[5:])


def test_a_resume_reads_no_more_of_lines_than_a_window_and_a_block(
    server: FragileServer, tokenizer: Tokenizer
) -> None:
    server.files["part.jsonl"] = LINES * 20
    url = f"{server.url}/part.jsonl"
    ranks = Ranks(text(url), tokenizer, lanes=1)
    ranks.batches(150)
    resumed = Ranks(text(url), tokenizer, lanes=1)
    server.requests.clear()
    resumed.load(ranks.state())
    resumed.next()
    assert len(server.requests) <= 4


def test_empty_files_leave_no_lane_without_records(
    server: FragileServer, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Jobs that write a file each leave some of them empty."""
    write_numbered(tmp_path, [30, 25, 28, 33], suffix=".jsonl")
    expected = Ranks(text(str(tmp_path)), tokenizer).batches(12)
    for number in (1, 2, 3, 9):
        (tmp_path / f"part-00{number}-.jsonl").touch()
    assert same(Ranks(text(str(tmp_path)), tokenizer).batches(12), expected)
    server.lists_folders = True
    server.files |= {f"data/{file.name}": file.read_bytes() for file in tmp_path.glob("*")}
    ranks = Ranks(text(f"{server.url}/data/*.jsonl"), tokenizer)
    assert same(ranks.batches(12), expected)
    # a file of this format is never empty, unless it is damaged
    (tmp_path / "part-004.parquet").touch()
    with pytest.raises(ProblemsFound, match=r"part-004.parquet' record 1 cannot be read"):
        Ranks(text(str(tmp_path)), tokenizer, lanes=1).batches(90)


@pytest.mark.parametrize(
    "faults",
    [
        [503, 503],
        [(429, {"Retry-After": "0"}), 500],
        ["stall"],
        ["cut", "cut"],
        ["cut without length"],
        ["reset", 502, "cut"],
        [403],
    ],
    ids=str,
)
def test_faults_that_pass_change_no_batch(
    faults: list[Any],
    server: FragileServer,
    tmp_path: Path,
    tokenizer: Tokenizer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    content = server.files["part.jsonl.gz"] = make_file(".jsonl.gz")
    local = local_batches("part.jsonl.gz", content, tmp_path, tokenizer)
    url = f"{server.url}/part.jsonl.gz"
    ranks = Ranks(text(url), tokenizer)
    server.faults["part.jsonl.gz"] = list(faults)
    assert same(ranks.batches(12), local)
    assert not server.faults["part.jsonl.gz"]
    assert ("part.jsonl.gz' cannot be read: " in caplog.text) == (faults != [403])


def test_damage_on_the_way_is_fetched_again(
    server: FragileServer, tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    content = server.files["part.parquet"] = make_file(".parquet")
    local = local_batches("part.parquet", content, tmp_path, tokenizer)
    ranks = Ranks(text(f"{server.url}/part.parquet"), tokenizer)
    assert same(ranks.batches(1), local[:1])
    server.faults["part.parquet"] = ["flip"]
    assert same(ranks.batches(11), local[1:])
    assert "is damaged; fetching it again" in caplog.text


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("bad_files", [{}, {"bad_files": "skip", "max_bad_files": 1}])
def test_records_that_arrived_damaged_before_the_checksum_are_told(
    bad_files: dict[str, Any], suffix: str, server: FragileServer, tokenizer: Tokenizer
) -> None:
    # without compression, damage changes texts, and only the checksum at the end knows
    server.files[f"part{suffix}.gz"] = gzip.compress(make_file(suffix), 0)
    url = f"{server.url}/part{suffix}.gz"
    ranks = Ranks(text(url, **bad_files), tokenizer)
    server.faults[f"part{suffix}.gz"] = [lambda body: body.replace(b"xxxx", b"xxyx", 1)] * 2
    with pytest.raises(ProblemsFound) as found:
        ranks.batches(60)
    (problem,) = found.value.problems
    assert (problem.rule, found.value.exit_code) == ("source-damaged", 3)
    assert problem.message.startswith(f"'{url}' record ")
    assert "records before that one were not those of the file" in problem.message
    assert "start again" in (problem.hint or "")


def test_a_damaged_checksum_alone_changes_no_batch(
    server: FragileServer, tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    content = server.files["part.jsonl.gz"] = make_file(".jsonl.gz")
    local = local_batches("part.jsonl.gz", content, tmp_path, tokenizer, count=60)
    checksums = [content[-8:-4]]

    def flip(body: bytes) -> bytes:
        """Damage the checksum the first time that it is sent."""
        return (
            body.replace(checksums.pop(), b"abcd") if checksums and checksums[0] in body else body
        )

    server.faults["part.jsonl.gz"] = [flip] * 50
    assert same(batches(f"{server.url}/part.jsonl.gz", tokenizer, 60), local)
    assert "is damaged; fetching it again" in caplog.text


@pytest.mark.parametrize(
    ("status", "rule", "reason"),
    [
        (404, "source-gone", "HTTP 404 Not Found"),
        (410, "source-gone", "HTTP 410 Gone"),
        (401, "source-refused", "HTTP 401 Unauthorized"),
        (403, "source-refused", "HTTP 403 Forbidden"),
        (503, "source-unreachable", "HTTP 503 Service Unavailable"),
    ],
)
# it would wait for 15 minutes if nothing read retry_timeout
@pytest.mark.timeout(60)
def test_a_fault_that_stays_ends_with_its_name(
    status: int, rule: str, reason: str, server: FragileServer, tokenizer: Tokenizer
) -> None:
    server.files["part.jsonl"] = LINES
    url = f"{server.url}/part.jsonl"
    ranks = Ranks(text(url), tokenizer, retry_timeout=0.1)
    ranks.batches(1)
    server.status["part.jsonl"] = status
    waits: list[str | None] = []
    with on_wait(waits.append), pytest.raises(ProblemsFound) as found:
        ranks.batches(60)
    # the last step is saved then, for which nobody waits
    assert waits[-1] is None
    (problem,) = found.value.problems
    assert (problem.code, problem.rule, problem.path) == ("data", rule, ("path",))
    assert problem.message.startswith(f"'{url}' ") and problem.message.endswith(reason)
    assert (" tries in " in problem.message) == (status == 503)
    # at the start, too
    assert find_problem(url, tokenizer, retry_timeout=0.1).rule == rule
    server.status.clear()
    assert len(batches(url, tokenizer)) == 12


@pytest.mark.parametrize("name", ["two words.jsonl", "two%20words.jsonl", "données.jsonl"])
@pytest.mark.timeout(60)
def test_an_address_is_written_as_people_read_it(
    name: str, server: FragileServer, tokenizer: Tokenizer
) -> None:
    """A space was tried again for 15 minutes, and other letters were an error of Python."""
    server.files["two words.jsonl"] = server.files["données.jsonl"] = LINES
    assert len(batches(f"{server.url}/{name}", tokenizer)) == 12


def test_a_file_that_changes_while_the_run_trains_ends_it(
    server: FragileServer, tokenizer: Tokenizer
) -> None:
    for changed in (LINES + b"\n", LINES[:-2] + b"\n\n"):
        server.files["part.jsonl"] = LINES
        ranks = Ranks(text(f"{server.url}/part.jsonl"), tokenizer)
        ranks.next()
        server.files["part.jsonl"] = changed
        with pytest.raises(ProblemsFound) as found:
            ranks.batches(60)
        assert found.value.problems[0].rule == "source-changed"


def test_damage_that_stays_ends_with_record_and_file(
    server: FragileServer, tokenizer: Tokenizer
) -> None:
    content = make_file(".jsonl.gz")
    server.files["part.jsonl.gz"] = content[: len(content) // 2]
    problem = find_problem(f"{server.url}/part.jsonl.gz", tokenizer, count=60)
    assert problem.rule == "source-damaged"
    assert "/part.jsonl.gz' record " in problem.message


def test_a_server_that_sends_only_whole_files_is_refused_by_name(
    server: FragileServer, tokenizer: Tokenizer
) -> None:
    server.files["part.jsonl"], server.has_ranges = LINES, False
    problem = find_problem(f"{server.url}/part.jsonl", tokenizer)
    assert problem.rule == "source-without-ranges"
    assert problem.hint == "download the file and set its path, or use another server"


def test_a_redirect_is_followed_once_and_again_when_it_has_expired(
    server: FragileServer, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    local = local_batches("part.jsonl", LINES, tmp_path, tokenizer)
    with serve_files() as store:
        store.files["signed.jsonl"] = server.files["part.jsonl"] = LINES
        address = {"Location": f"{store.url}/signed.jsonl?key=1"}
        # more than the requests: each is redirected
        server.faults["part.jsonl"] = [(302, address)] * 1000
        ranks = Ranks(text(f"{server.url}/part.jsonl"), tokenizer, lanes=1, batch=8)
        ranks.batches(2)
        asked = len(server.requests)
        assert same(
            ranks.batches(3), batches(str(tmp_path / "part.jsonl"), tokenizer, 5, lanes=1)[2:]
        )
        assert len(server.requests) == asked and len(store.requests) > asked
        store.faults["signed.jsonl"] = [403]
        ranks.batches(20)
        assert not store.faults["signed.jsonl"]
        assert len(server.requests) > asked
    assert local


def test_objects_of_a_store_are_read_as_files(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fsspec.filesystem("memory")
    store.store.clear()
    (tmp_path / "sub").mkdir()
    for number, name in enumerate(["a.jsonl", "sub/b.jsonl", "sub/.hidden.jsonl", "notes.md"]):
        lines = LINES.splitlines(keepends=True)[number * 100 : number * 100 + 100]
        store.pipe(f"/bucket/{name}", b"".join(lines))
        (tmp_path / name).write_bytes(b"".join(lines))
    local = batches(str(tmp_path), tokenizer)
    assert same(batches("memory://bucket", tokenizer), local)
    assert same(batches("memory://bucket/**/*.jsonl", tokenizer), local)
    ranks = Ranks(text("memory://bucket"), tokenizer)
    ranks.next()
    store.pipe("/bucket/sub/b.jsonl", LINES)
    with pytest.raises(ProblemsFound) as found:
        ranks.batches(60)
    assert found.value.problems[0].rule == "source-changed"
    store.rm("/bucket/sub/b.jsonl")
    # an object that is replaced while it is read
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(line_reader, "BLOCK_BYTES", 2000)
    ranks = Ranks(text("memory://bucket/a.jsonl"), tokenizer, retry_timeout=1)
    ranks.next()
    store.pipe("/bucket/a.jsonl", LINES[:3000])
    with pytest.raises(ProblemsFound) as found:
        ranks.batches(60)
    assert found.value.problems[0].rule == "source-changed"
    ranks = Ranks(text("memory://bucket"), tokenizer)
    assert find_problem("memory://bucket/none.jsonl", tokenizer).rule == "source-gone"
    assert "names no .jsonl" in find_problem("memory://bucket/*.md", tokenizer).message


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("s3://bucket/*.jsonl", "needs a package that is not installed", "titanrun[s3]"),
        ("gs://bucket/*.jsonl", "needs a package that is not installed", "titanrun[gcs]"),
        ("ftpx://example.com/a.jsonl", "has an unknown scheme", "use https, hf, s3"),
        ("ftp://example.com/a.jsonl", "has an unknown scheme", "use https, hf, s3"),
    ],
)
def test_addresses_that_cannot_be_read_here_are_told(
    path: str, message: str, hint: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_path, "find_spec", lambda _: None)
    problem = find_problem(path, tokenizer)
    assert message in problem.message and hint in (problem.hint or "")


def test_a_process_tells_that_it_waits_while_it_waits(
    server: FragileServer, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    server.files["part.jsonl"] = LINES
    ranks = Ranks(text(f"{server.url}/part.jsonl"), tokenizer, num_workers=1, retry_timeout=1.5)
    server.status["part.jsonl"] = 500
    waits: list[str | None] = []
    try:
        with on_wait(waits.append), pytest.raises(ProblemsFound) as found:
            ranks.next()
        assert f"'{server.url}/part.jsonl'" in waits
        assert "HTTP 500 Internal Server Error; waiting" in caplog.text
        assert found.value.problems[0].rule == "source-unreachable"
    finally:
        ranks.close()
