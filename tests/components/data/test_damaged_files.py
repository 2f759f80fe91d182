"""Damaged files of a stream: refused, or left out from a record on, counted and limited."""

import errno
import gzip
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.data.lane_streams import Ranks, lane_texts, numbers_in, same
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.lane_plan import PlanFile
from titanrun.components.data.lane_records import RecordFile
from titanrun.components.data.record_readers import iter_arrow_records
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_head import build_stream_head
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound

GROUP = 20


def write_parquet(path: Path, numbers: Sequence[int], *, damaged_group: int | None = None) -> None:
    """Write documents in row groups of 20, whose pages have checksums, and damage one group."""
    texts = [f"<{number}>" + "x" * (number * 7 % 50) for number in numbers]
    path.parent.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"text": texts}),
        path,
        row_group_size=GROUP,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    if damaged_group is not None:
        column = pq.read_metadata(path).row_group(damaged_group).column(0)
        content = bytearray(path.read_bytes())
        content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
        path.write_bytes(content)


def write_files(folder: Path) -> list[int]:
    """Write 8 files, one of them ten times the others, two damaged, and return what is whole."""
    kept, first = list[int](), 0
    for file, count in enumerate([100, 100, 1000, 100, 100, 100, 100, 100]):
        damaged = {2: 37, 5: 3}.get(file)
        numbers = range(first, first + count)
        write_parquet(folder / f"part-{file}.parquet", numbers, damaged_group=damaged)
        kept += numbers[: count if damaged is None else damaged * GROUP]
        first += count
    return kept


def text(folder: Path, **options: Any) -> TextDatasetConfig:
    chosen = {"streaming": True, "window": 16, "bad_files": "skip", "max_bad_files": 2, **options}
    return TextDatasetConfig(path=str(folder), **chosen)


def find_problem(config: TextDatasetConfig, tokenizer: Tokenizer) -> Problem:
    with pytest.raises(ProblemsFound) as found:
        Ranks(config, tokenizer).rest()
    assert found.value.exit_code == 3
    (problem,) = found.value.problems
    return problem


@pytest.mark.parametrize("packing", ["windows", "best_fit"])
def test_the_whole_part_of_damaged_files_is_read_once_on_any_ranks(
    packing: str, tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    kept = write_files(tmp_path)
    config = text(tmp_path, repeat=False, packing=packing)
    whole = Ranks(config, tokenizer).rest()
    read = [number for lane in lane_texts(whole, tokenizer, 4) for number in numbers_in(lane)]
    assert sorted(read) == kept
    left_out = f"{tmp_path}/part-2.parquet' record 741 cannot be read: the file is damaged"
    assert left_out in caplog.text and "the rest of the file is left out" in caplog.text
    assert same(Ranks(config, tokenizer, 4).rest(), whole)
    with_processes = Ranks(config, tokenizer, 2, num_workers=2)
    try:
        assert same(with_processes.rest(), whole)
        assert with_processes.state()["sources"][0]["skipped"] == [[2, 740], [5, 60]]
    finally:
        with_processes.close()


def test_a_resume_and_later_epochs_do_not_look_for_the_damage_again(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path)
    config = text(tmp_path)
    ranks = Ranks(config, tokenizer)
    ranks.batches(160)
    said = caplog.text.count("is left out")
    assert said == 2 and ranks.state()["cursors"][0][0][1] == 1
    state, rest = ranks.state(), ranks.batches(40)
    resumed = Ranks(config, tokenizer, 2)
    resumed.load(state)
    assert same(resumed.batches(40), rest)
    assert caplog.text.count("is left out") == said
    assert ranks.loaders[0].collect_metrics()["data/bad_files"] == 2


def test_one_more_damaged_file_than_the_limit_ends_the_run_with_all_names(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_files(tmp_path)
    problem = find_problem(text(tmp_path, max_bad_files=1), tokenizer)
    assert (problem.rule, problem.path) == ("source-damaged", ("max_bad_files",))
    assert problem.message == (
        "2 files cannot be read: more are damaged than max_bad_files 1 allows: "
        f"'{tmp_path}/part-2.parquet' from record 741 on, "
        f"'{tmp_path}/part-5.parquet' from record 61 on"
    )
    refused = find_problem(text(tmp_path, bad_files="refuse", max_bad_files=0), tokenizer)
    assert refused.rule == "source-damaged" and refused.path == ("path",)


def test_a_lane_whose_only_file_is_damaged_says_so(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        lines = "".join(f'{{"text": "words {number} {line}"}}\n' for line in range(40))
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    file = tmp_path / "2.jsonl.gz"
    file.write_bytes(file.read_bytes()[:12])
    problem = find_problem(text(tmp_path), tokenizer)
    assert "of 4 lanes finds no records in its files without those that are damaged" in str(problem)
    assert problem.hint == "set fewer training.lanes, or repair the files that the log names"
    assert "the whole file is left out" in caplog.text and "the rest" not in caplog.text


def test_the_end_of_a_truncated_compressed_file_is_left_out(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    for part in range(3):
        lines = [json.dumps({"text": f"<{part * 900 + at}>" + "y" * at}) for at in range(900)]
        content = gzip.compress("\n".join(lines).encode())
        kept = len(content) - 40 if part == 1 else len(content)
        (tmp_path / f"{part}.jsonl.gz").write_bytes(content[:kept])
    ranks = Ranks(text(tmp_path, repeat=False), tokenizer, lanes=1)
    found = numbers_in(lane_texts(ranks.rest(), tokenizer, 1)[0])
    ((file, record),) = ranks.state()["sources"][0]["skipped"]
    assert file == 1 and record < 900
    assert sorted(found) == [*range(900 + record), *range(1800, 2700)]


class FailingFiles:
    """A disk that cannot be read."""

    def open(self, file: PlanFile) -> BinaryIO:
        raise OSError(errno.EIO, "Input/output error")


def test_an_error_of_the_disk_is_no_damage_of_the_file() -> None:
    left_out: list[int] = []
    file = RecordFile(
        FailingFiles(),
        PlanFile("a.parquet", 1, "", "a.parquet"),
        on_damage=lambda record, _: left_out.append(record),
    )
    with pytest.raises(ProblemsFound, match="Input/output error"):
        list(file.iter_from(0, 0))
    assert not left_out


def test_validation_data_leaves_the_same_records_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    kept = write_files(tmp_path / "texts")
    rows = build_stream_head(
        text(tmp_path / "texts"),
        tokenizer=tokenizer,
        sample_length=65,
        cache_folder=tmp_path / "cache",
        rows=None,
        retries=RetryPolicy(1),
    )
    ids = [token for row in range(len(rows)) for token in rows[row].tolist()]
    found = numbers_in(tokenizer.decode(ids))
    # the last tokens do not fill a sequence
    assert found == kept[: len(found)] and len(found) >= len(kept) - 2
    with pytest.raises(ProblemsFound, match="more are damaged than max_bad_files 1 allows"):
        build_stream_head(
            text(tmp_path / "texts", max_bad_files=1),
            tokenizer=tokenizer,
            sample_length=65,
            cache_folder=tmp_path / "other",
            rows=None,
            retries=RetryPolicy(1),
        )


def test_bytes_and_documents_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = "".join(json.dumps({"text": f"<{number}>" * 9}) + "\n" for number in range(300))
    for part in range(4):
        (tmp_path / f"{part}.jsonl").write_text(lines)
    for workers in (0, 2):
        ranks = Ranks(
            text(tmp_path, repeat=False, bad_files="refuse", max_bad_files=0),
            tokenizer,
            num_workers=workers,
        )
        try:
            assert ranks.loaders[0].collect_metrics()["data/documents"] == 0
            ranks.rest()
            metrics = ranks.loaders[0].collect_metrics()
            assert metrics.pop("data/wait_seconds") > 0
            assert metrics.pop("data/bytes") == 4 * len(lines)
            assert metrics == {
                "data/retries": 0,
                "data/documents": 1200,
                "data/epoch_min": 0,
                "data/epoch_max": 0,
            }
        finally:
            ranks.close()


class KeptFiles:
    """Files in memory, all with the same content."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def open(self, file: PlanFile) -> BinaryIO:
        return io.BytesIO(self.content)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_any_damage_without_a_checksum_is_a_problem(suffix: str, tmp_path: Path) -> None:
    """Bytes that are no text were an internal error, and offsets in Arrow files ended the process
    with SIGSEGV."""
    table, content = pa.table({"text": [f"<{number}> wörds" for number in range(30)]}), io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, content, compression="none", use_dictionary=False)
    else:
        with pa.ipc.new_file(content, table.schema) as writer:
            writer.write_table(table)
    file, num_problems = PlanFile(f"a{suffix}", 0, "", f"a{suffix}"), 0
    for place in range(0, len(content.getvalue()), 3):
        damaged = bytearray(content.getvalue())
        damaged[place] ^= 255
        source = RecordFile(KeptFiles(bytes(damaged)), file, {"text": ("column",)})
        try:
            for record in source.iter_from(0, 0):
                source.parse(record)
        except ProblemsFound as found:
            assert found.exit_code == 3
            num_problems += 1
        # an index reads the same file with the datasets library, or mapped into memory
        (tmp_path / "a.arrow").write_bytes(damaged)
        if suffix == ".arrow":
            with suppress(ProblemsFound):
                list(iter_arrow_records(tmp_path / "a.arrow", {"text": ("column",)}))
    assert num_problems > 100
