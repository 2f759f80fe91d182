"""Data that is tokenized in units, by several processes or as parts on several machines."""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from titanrun.cli import data as command
from titanrun.cli.data_output import iter_build_lines
from titanrun.components.data import file_spans, unit_processes
from titanrun.components.data.token_cache import IndexRecord, find_index_record
from titanrun.components.data.token_cache_maintenance import (
    discard_damaged_indexes,
    prune_token_cache,
    verify_token_cache,
)
from titanrun.components.data.token_index import TokenIndex, find_token_index
from titanrun.components.data.token_units import MAX_NAMES_LISTED, missing_units_error
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training:
  dataset: {name: text, path: data, packing: best_fit}
  seq_len: 32
"""
WHOLE, PARTS = "whole", "parts"
HOLDOUT = ("validation.holdout=0.3",)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds the data of a recipe in this process, large files in several spans."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_spans, "SPAN_BYTES", 600)
    write_files(tmp_path / "data")
    (tmp_path / "r.yaml").write_text(RECIPE)

    def ask(folder: str, *overrides: str, **request: Any) -> Any:
        text = resolve_recipe(
            "r.yaml", [f"training.data_cache={folder}", *overrides], environment={}
        ).text
        plain = {"repair": False, "workers": None, "part": None, "finish": False}
        return ACTIONS["build"]({"resolved": text, **plain, **request})

    return ask


def write_files(folder: Path) -> None:
    """Write documents in every format; two of the files are larger than a span."""
    folder.mkdir()
    rows = [
        {"text": f"story {number} {'und so weiter ✓ ' * (number % 7)}", "n": number}
        for number in range(90)
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (folder / "a.jsonl").write_bytes("\r\n".join(["\ufeff" + lines[0], *lines[1:40]]).encode())
    (folder / "b.jsonl").write_text("\n \n" + "\n\n".join(lines[40:44]))
    (folder / "c.jsonl").write_text("")
    table = pa.Table.from_pylist(rows[44:70])
    pq.write_table(table, folder / "d.parquet", row_group_size=4)
    (folder / "e.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[70:80]).encode()))
    (folder / "f.csv").write_text("text,n\n" + "\n".join(f'"one, {n}",{n}' for n in range(5)))
    (folder / "g.txt").write_text("a whole file\n" * 60)
    for file in folder.iterdir():
        make_old(file)


def make_old(file: Path) -> None:
    """Make a file old enough for its time to guarantee its content."""
    os.utime(file, (time.time() - 100, time.time() - 100))


def read_indexes(folder: str) -> dict[str, tuple[IndexRecord, Any]]:
    """Return record and tokens of each index of a folder."""
    found: dict[str, tuple[IndexRecord, Any]] = {}
    for path in Path(folder).glob("*.json"):
        if find_index_record(path) is not None:
            index = find_token_index(Path(folder), path.stem)
            assert isinstance(index, TokenIndex)
            found[path.stem] = (index.record, index.tokens[:])
    return found


def check_equal(made: str, oracle: str) -> None:
    """Check that the indexes of two folders are the same, bit by bit."""
    found, expected = read_indexes(made), read_indexes(oracle)
    assert found.keys() == expected.keys() and found
    for key, (record, tokens) in found.items():
        of_one, expected_tokens = expected[key]
        assert record.units and not of_one.units
        assert tokens.dtype == expected_tokens.dtype and np.array_equal(tokens, expected_tokens)
        assert replace(record, units=(), tokens_file="", size=0) == replace(
            of_one, tokens_file="", size=0
        )


def build_parts(build: Callable[..., Any], count: int, *overrides: str) -> Any:
    numbers = list(range(1, count + 1))
    random.Random(count).shuffle(numbers)
    units = 0
    for number in numbers:
        (answer,) = build(PARTS, *overrides, part=[number, count])
        units += answer["units"]
    assert units > 5
    assert not read_indexes(PARTS)
    return build(PARTS, *overrides, finish=True)


@pytest.mark.parametrize(
    ("count", "overrides"),
    [
        (3, ()),
        (1, ("training.dataset.packing=windows",)),
        (7, HOLDOUT),
        (2, ("training.dataset.max_documents=43",)),
        (2, ("training.dataset.max_documents=6", "training.dataset.path=data/[ad].*")),
        (4, ("training.dataset.max_documents=50", *HOLDOUT, "training.dataset.path=data/[adf].*")),
        (
            3,
            (
                'training.dataset.filters=[{"column": "n", "at_least": 3, "at_most": 60}]',
                'training.dataset.format="{n}: {text}"',
                "training.dataset.path=data/[abd].*",
            ),
        ),
    ],
)
def test_parts_in_any_order_make_the_index_that_one_process_makes(
    build: Callable[..., Any], count: int, overrides: tuple[str, ...]
) -> None:
    expected = [entry["rows"] for entry in build(WHOLE, *overrides)]
    assert [entry["rows"] for entry in build_parts(build, count, *overrides)] == expected
    check_equal(PARTS, WHOLE)


def test_large_files_have_spans_and_an_index_is_finished_only_when_it_is_whole(
    build: Callable[..., Any],
) -> None:
    spans = file_spans.list_file_spans(sorted(Path("data").iterdir()))
    several = {span.file.name for span in spans if not span.is_whole}
    assert several == {"a.jsonl", "d.parquet"} and len(spans) > 9
    for number in (1, 3):
        build(PARTS, part=[number, 3])
    with pytest.raises(ProblemsFound) as error:
        build(PARTS, finish=True)
    (problem,) = error.value.problems
    assert problem.message.startswith(f"{len(spans) // 3} of {len(spans)} units are not tokenized")
    assert spans[2].name in problem.message and problem.path == ("training", "dataset", "path")
    before = {file: file.stat().st_ino for file in Path(PARTS, "units").glob("*.npy")}
    build(PARTS, workers=1)
    build(WHOLE)
    check_equal(PARTS, WHOLE)
    assert (
        before.items()
        <= {file: file.stat().st_ino for file in Path(PARTS, "units").glob("*.npy")}.items()
    )


def test_bad_records_of_all_units_are_counted_together(build: Callable[..., Any]) -> None:
    file = Path("data/a.jsonl")
    file.write_text(file.read_text(encoding="utf-8-sig").replace('"n": 3}', "", 1))
    make_old(file)
    skip = ("training.dataset.bad_records=skip", "training.dataset.path=data/[ab].jsonl")
    build(WHOLE, *skip, "training.dataset.max_bad_share=0.1")
    build_parts(build, 2, *skip, "training.dataset.max_bad_share=0.1")
    check_equal(PARTS, WHOLE)
    assert next(iter(read_indexes(PARTS).values()))[0].skipped == 1
    with pytest.raises(ProblemsFound, match="1 of 44 records cannot be read"):
        build("other", *skip, workers=1)
    with pytest.raises(ProblemsFound, match=r"'data/a.jsonl' line \d+ after byte \d+ .*not JSON"):
        build("refused", skip[1], workers=1)


def test_a_number_of_held_out_documents_needs_one_process(build: Callable[..., Any]) -> None:
    with pytest.raises(ProblemsFound) as error:
        build(PARTS, "validation.holdout=5", workers=2)
    (problem,) = error.value.problems
    assert problem.path == ("validation", "holdout") and "--workers" in (problem.hint or "")


def test_a_damaged_unit_is_named_and_alone_tokenized_anew(build: Callable[..., Any]) -> None:
    build(PARTS, workers=1)
    (key,) = read_indexes(PARTS)
    units = Path(PARTS, "units")
    record = find_index_record(Path(PARTS, f"{key}.json"))
    assert record is not None
    damaged = units / f"{record.units[1].name}.npy"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    before = {file: file.stat().st_ino for file in units.glob("*.npy") if file != damaged}
    index = find_token_index(Path(PARTS), key)
    assert index is not None
    with pytest.raises(ProblemsFound, match="holds other tokens than were written"):
        index.tokens[:]
    build(PARTS, workers=1)
    damaged.write_bytes(content)
    (found,) = verify_token_cache(Path(PARTS))
    assert found["damage"].endswith(f"unit units/{damaged.name}")
    repaired = build(PARTS, repair=True)[-1]
    assert repaired["repaired"]["name"] == key
    build(WHOLE)
    check_equal(PARTS, WHOLE)
    assert {file: file.stat().st_ino for file in before} == before
    assert discard_damaged_indexes(Path(PARTS)) == {}


def test_a_run_notices_that_a_unit_is_gone(build: Callable[..., Any]) -> None:
    build(PARTS, workers=1)
    (key,) = read_indexes(PARTS)
    index = find_token_index(Path(PARTS), key)
    assert index is not None
    file = index.get_unchanged_file()
    index.tokens[:10]
    file.check()
    next(Path(PARTS, "units").glob("*.npy")).touch()
    file.check()
    assert len(index.tokens[:]) == len(index.tokens)
    for unit in Path(PARTS, "units").glob("*.npy"):
        unit.unlink()
    with pytest.raises(ProblemsFound, match="is gone while the run reads it"):
        file.check()
    assert find_token_index(Path(PARTS), key) is None


def test_units_stay_as_long_as_they_are_of_use(build: Callable[..., Any]) -> None:
    folder = Path(PARTS)
    plain: dict[str, Any] = {"should_delete_all": False, "max_unused_days": None}
    build(PARTS, part=[1, 2])
    assert prune_token_cache(folder, should_delete=True, **plain) == []
    build(PARTS, workers=1)
    assert prune_token_cache(folder, should_delete=True, **plain) == []
    before = {file: file.stat().st_ino for file in folder.rglob("*.npy")}
    Path("data/b.jsonl").write_text(json.dumps({"text": "another story"}))
    make_old(Path("data/b.jsonl"))
    for should_delete in (False, True):
        found = prune_token_cache(folder, should_delete=should_delete, **plain)
        assert [entry["source"] for entry in found] == ["data", "data/b.jsonl"]
    build(PARTS, workers=1)
    build(WHOLE)
    check_equal(PARTS, WHOLE)
    after = {file: file.stat().st_ino for file in folder.rglob("*.npy")}
    assert len(after.items() & before.items()) == len(before) - 1
    for part in (folder / ".a.npy.tmp-7", folder / "units" / ".b.npy.tmp-7"):
        part.write_bytes(b"half")
        assert prune_token_cache(folder, should_delete=True, **plain) == []
        # of a process that died: it was not written for hours
        os.utime(part, (time.time() - 10_000, time.time() - 10_000))
        (found,) = prune_token_cache(folder, should_delete=True, **plain)
        assert found["name"] == part.relative_to(folder).as_posix() and not part.exists()
    prune_token_cache(folder, should_delete_all=True, max_unused_days=None, should_delete=True)
    assert not list(folder.rglob("*.npy"))


def test_a_complete_index_is_not_tokenized_in_units(build: Callable[..., Any]) -> None:
    build(WHOLE)
    assert build(WHOLE, part=[1, 1]) == [{"part": [1, 1], "units": 0}]
    build(WHOLE, workers=2)
    assert not Path(WHOLE, "units").exists()


def test_a_part_of_a_stream_is_told_as_one(build: Callable[..., Any]) -> None:
    overrides = ("training.dataset.streaming=true", "training.dataset.path=data/a.jsonl")
    found = build(PARTS, *overrides, part=[1, 3])
    assert list(iter_build_lines(found)) == [
        "part 1 of 3: 0 units tokenized\n",
        "training.dataset: a stream, tokenized while the run trains\n",
    ]


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "1/0"])
def test_a_part_is_one_of_n(text: str) -> None:
    with pytest.raises(ProblemsFound, match="is not one of N parts"):
        command.parse_part(text)


def test_a_process_that_dies_is_named(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_processes, "ENTRY", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ProblemsFound, match=r"process \d+ ended with signal SIGKILL"):
        build(PARTS, "training.dataset.path=data/f.csv", workers=2)


@pytest.mark.slow
def test_problems_of_other_processes_are_those_of_one(build: Callable[..., Any]) -> None:
    Path("data/x.jsonl").write_text('{"text": "good"}\n{"text": \n')
    with pytest.raises(ProblemsFound) as error:
        build(PARTS, "training.dataset.path=data/[bx].jsonl", workers=2)
    (problem,) = error.value.problems
    assert problem.message.startswith("'data/x.jsonl' line 2 ")
    assert problem.path == ("training", "dataset", "path")


def start_build(*options: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "titanrun", "data", "build", "r.yaml", "-q", *options]
    return subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_killed_build_goes_on_where_it_was(build: Callable[..., Any]) -> None:
    for number in range(12):
        text = "".join(
            json.dumps({"text": f"{number} {line} " + "wort " * 200}) + "\n" for line in range(100)
        )
        Path(f"data/x{number:02}.jsonl").write_text(text)
    options = ("training.data_cache=parts", "training.dataset.path=data/x*", "--workers", "2")
    killed = start_build(*options)
    units = Path(PARTS, "units")
    while killed.poll() is None and len(list(units.glob("*.npy"))) < 2:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    done = {
        path: path.with_suffix(".npy").stat().st_ino
        for path in units.glob("*.json")
        if find_index_record(path) is not None
    }
    assert 0 < len(done) < 12 and not read_indexes(PARTS)
    assert start_build(*options).wait() == 0
    assert {path: path.with_suffix(".npy").stat().st_ino for path in done} == done
    build(WHOLE, "training.dataset.path=data/x*")
    check_equal(PARTS, WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["whole", "units"])
def test_commands_that_run_at_once_make_one_index(
    options: tuple[str, ...], build: Callable[..., Any]
) -> None:
    started = [start_build("training.data_cache=at-once", *options) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    build(WHOLE)
    assert [(one["damage"], one["changed"]) for one in verify_token_cache(Path("at-once"))] == [
        (None, [])
    ]
    (found,), (expected,) = read_indexes("at-once").values(), read_indexes(WHOLE).values()
    assert found[0].digest == expected[0].digest and np.array_equal(found[1], expected[1])
    kept = {path.suffix for path in Path("at-once").rglob("*") if path.is_file()}
    assert kept == {".json", ".npy", ".blocks"}


@pytest.mark.slow
def test_the_array_of_the_data_page_makes_the_index_that_one_process_makes(
    build: Callable[..., Any],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```bash\n(#!.*?)^```", page, re.S | re.M)
    assert "#SBATCH --array=1-64\n" in script
    Path("recipe.yaml").write_text(RECIPE + "  data_cache: parts\n")
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_CPUS_PER_TASK": "1"}
    for number in ("2", "3", "1"):
        task = {**os.environ, **job, "PATH": binaries, "SLURM_ARRAY_TASK_ID": number}
        subprocess.run(["bash", "-euc", script], env=task, check=True)
    assert not read_indexes(PARTS)
    finish = re.findall(r"`titanrun (data build recipe.yaml --finish)`", page)
    subprocess.run([sys.executable, "-m", "titanrun", *finish[0].split()], check=True)
    build(WHOLE)
    check_equal(PARTS, WHOLE)


@pytest.mark.parametrize(
    ("count", "end"), [(1, ""), (MAX_NAMES_LISTED, ""), (MAX_NAMES_LISTED + 2, " and 2 more")]
)
def test_units_that_are_missing_are_counted_and_some_named(count: int, end: str) -> None:
    missing = [file_spans.FileSpan(Path(f"{number}.txt")) for number in range(count)]
    (problem,) = missing_units_error(missing, 1200).problems
    names = ", ".join(f"'{number}.txt'" for number in range(min(count, MAX_NAMES_LISTED)))
    assert problem.message == f"{count} of 1,200 units are not tokenized: {names}{end}"
