"""Rows 38 to 45: data that is missing, damaged, odd, too short or too slow."""

import json
import math
import os
import signal
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tests.faults import seams
from tests.faults.conftest import EVERY_3, Note, Run, digests, said
from tests.faults.processes import work, work_together
from tests.worker.conftest import write_run, write_tokens
from titanrun.cli.main import run_and_flush
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.worker.rank_main import main

TINY_VOCABULARY = 2048
ODD = [
    "nul \0 inside",
    "\ufeffa mark in front",
    "line\u2028and\u2029paragraph",
    "\u202eright to left \u05d0\u05d1",
    "\U0001f600" * 9,
]


@pytest.fixture
def text_run(tmp_path: Path, shared_tokens: Path) -> Callable[..., Path]:
    """Writes a run on a file of text, with the tiny tokenizer and a model that fits it, and gives
    the path of its resolved.yaml."""

    def write(file: Path, *overrides: str, folder: str = "run") -> Path:
        fitting = (
            "tokenizer=tiny",
            f"model.vocab_size={TINY_VOCABULARY}",
            f"training.dataset={{name: text, path: {file}}}",
        )
        return write_run(tmp_path, shared_tokens, folder, *EVERY_3, *fitting, *overrides)

    return write


def write_jsonl(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def tokens_of(resolved: Path) -> list[int]:
    """The ids of the index that a run made."""
    (file,) = (resolved.parent / "data").glob("*.npy")
    ids: list[int] = np.load(file).tolist()
    return ids


def losses(resolved: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]


def test_row_38_data_that_is_missing_is_found_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], note: Note
) -> None:
    resolved = write_run(tmp_path, write_tokens(tmp_path / "gone.npy"))
    (tmp_path / "gone.npy").unlink()
    assert main([str(resolved)]) == 3
    assert f"error[data]: file not found: '{tmp_path}/gone.npy'" in capsys.readouterr().err
    assert run_and_flush(["validate", "--level", "environment", str(tmp_path / "recipe.yaml")]) == 3
    assert "error[data/paths-exist]" in capsys.readouterr().err
    assert not (resolved.parent / "metrics.jsonl").exists()
    note(
        38,
        injected="the data file removed",
        outcome="found by validate; the worker ends with exit 3 before step 1",
        lost="nothing",
    )


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.slow
def test_row_39_data_that_changes_while_a_run_reads_it_ends_the_run(
    tmp_path: Path, uncut: Path, note: Note
) -> None:
    tokens = write_tokens(tmp_path / "tokens.npy")
    whole = tokens.read_bytes()
    for how in ("removed", "written over", "cut short"):
        tokens.write_bytes(whole)
        resolved = write_run(tmp_path, tokens, how.replace(" ", "-"), *EVERY_3)
        assert work(resolved, seams.file_changes, 4, tokens, how) == 3, how
        assert f"'{tokens}' {'is gone' if how == 'removed' else ''}" in said(resolved)
        assert "while the run reads it" in said(resolved) or how == "cut short"
        tokens.write_bytes(whole)
        assert work(resolved) == 0
        assert "resuming after step 3" in said(resolved)
        assert digests(resolved) == digests(uncut)
    # other bytes would be another thing than another time, or another copy
    resolved = write_run(tmp_path, tokens, "same", *EVERY_3)
    assert work(resolved, seams.file_changes, 4, tokens, "copied anew") == 0
    assert digests(resolved) == digests(uncut)
    outcome = (
        "exit 3 at the next batch, the file is named; resumes after step 3 once it is back; a "
        "copy with the same ids changes nothing"
    )
    note(
        39,
        injected="the token file removed, overwritten, truncated after step 4",
        outcome=outcome,
        lost="one interval",
    )


def harmed_parquet(path: Path) -> None:
    pq.write_table(pa.table({"text": ["one", "two"] * 100}), path)
    shortened(path)


CORRUPT: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "bad JSON": (
        "bad.jsonl",
        lambda path: path.write_text('{"text": "one"}\n{"text": two}\n'),
        "line 2 column 10 is not JSON",
    ),
    "no UTF-8": (
        "bad.txt",
        lambda path: path.write_bytes(b"one\ntwo\n\xff\xfe\n"),
        "line 3 is not UTF-8",
    ),
    "half a parquet file": ("bad.parquet", harmed_parquet, "cannot be read as parquet"),
    "half a surrogate pair": (
        "bad.jsonl",
        lambda path: path.write_text('{"text": "\\ud83d"}\n'),
        "line 1 has half a surrogate pair",
    ),
    "nothing": ("bad.jsonl", lambda path: path.write_text(""), "holds no documents"),
}


def test_row_40_a_record_that_cannot_be_read_is_named_by_file_and_line(
    tmp_path: Path, text_run: Callable[..., Path], capsys: pytest.CaptureFixture[str], note: Note
) -> None:
    for name, harm, words in CORRUPT.values():
        harm(tmp_path / name)
        resolved = text_run(tmp_path / name)
        assert main([str(resolved)]) == 3
        error = capsys.readouterr().err
        assert f"error[data]: '{tmp_path / name}'" in error
        assert words in error
        assert not (resolved.parent / "metrics.jsonl").exists()
    outcome = (
        "exit 3 before step 1, by file and line; nothing is skipped silently (skipping "
        "bad records comes with issue 8)"
    )
    note(40, injected=", ".join(CORRUPT), outcome=outcome, lost="nothing")


@pytest.mark.slow
def test_row_41_empty_tiny_and_giant_documents_are_trained_on_whole(
    tmp_path: Path, text_run: Callable[..., Path], note: Note
) -> None:
    # ten million bytes, with a character of four bytes over the edge of the pieces in which a file
    # is read
    giant = ("a b c d\n" * (10 * 2**20 // 8))[:-2] + "\U0001f600\n" + "and on"
    documents = ["", "a", giant, "", "b"]
    tokenizer = Tokenizer.from_file(str(TinyTokenizerConfig().folder / "tokenizer.json"))
    resolved = text_run(
        write_jsonl(tmp_path / "odd.jsonl", *documents),
        "training.steps=5",
        "lr_scheduler.total_steps=5",
    )
    assert main([str(resolved)]) == 0
    ids = tokens_of(resolved)
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in documents]
    begin, end = ids[0], ids[-1]
    assert ids == [token for document in expected for token in (begin, *document, end)]
    assert all(map(math.isfinite, losses(resolved)))
    alone = text_run(
        tmp_path / "alone.txt", "training.steps=2", "lr_scheduler.total_steps=2", folder="alone"
    )
    (tmp_path / "alone.txt").write_text(giant, encoding="utf-8")
    assert main([str(alone)]) == 0
    assert tokens_of(alone) == [begin, *expected[2], end]


def test_row_41_a_batch_in_which_nothing_counts_is_no_division_by_zero(
    run: Run, note: Note
) -> None:
    resolved = run(
        "run", "checkpoint.enable=false", "training.steps=5", "lr_scheduler.total_steps=5"
    )
    assert work(resolved, seams.nothing_counts, 3) == 0
    assert losses(resolved)[2] == 0.0
    assert all(map(math.isfinite, losses(resolved)))
    outcome = (
        "every token is trained on, the count is that of the tokenizer; loss 0 and no "
        "NaN if no label is valid"
    )
    note(
        41,
        injected="documents of 0 and 1 token and of 10 MB; a batch in which no label is valid",
        outcome=outcome,
        lost="nothing",
    )


@pytest.mark.slow
def test_row_42_odd_characters_are_tokenised_and_come_back(
    tmp_path: Path, text_run: Callable[..., Path], note: Note
) -> None:
    resolved = text_run(
        write_jsonl(tmp_path / "odd.jsonl", *ODD),
        "training.steps=6",
        "lr_scheduler.total_steps=6",
        "training.seq_len=8",
    )
    tokenizer = Tokenizer.from_file(str(TinyTokenizerConfig().folder / "tokenizer.json"))
    assert work(resolved, seams.signals_amid_step, 4, signal.SIGTERM) == 75
    ids = tokens_of(resolved)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert unicodedata.normalize("NFC", text) == unicodedata.normalize("NFC", "".join(ODD))
    # the same again from the files, and from there on
    (index,) = (resolved.parent / "data").glob("*.npy")
    index.unlink()
    assert work(resolved) == 0
    assert tokens_of(resolved) == ids
    assert "resuming after step 4" in said(resolved)
    outcome = (
        "each is recovered from the tokens; the same tokens at the next start; an "
        "unpaired surrogate is rejected (row 40)"
    )
    note(
        42,
        injected="NUL, BOM, U+2028, right-to-left marks, characters of four bytes",
        outcome=outcome,
        lost="nothing",
    )


def test_row_43_ids_that_the_model_does_not_know_are_refused_before_the_first_step(
    tmp_path: Path, text_run: Callable[..., Path], capsys: pytest.CaptureFixture[str], note: Note
) -> None:
    tokens = write_tokens(tmp_path / "tokens.npy")
    ids = np.load(tokens)
    ids[7, 3] = 64
    np.save(tokens, ids)
    resolved = write_run(tmp_path, tokens, "beyond")
    assert main([str(resolved)]) == 3
    assert "the data contains token id 64, but model.vocab_size is 64" in capsys.readouterr().err
    fits = text_run(write_jsonl(tmp_path / "fine.jsonl", "text"))
    fits.write_text(fits.read_text().replace(f"vocab_size: {TINY_VOCABULARY}", "vocab_size: 64"))
    assert main([str(fits)]) == 2
    assert (
        f"the tokenizer has {TINY_VOCABULARY:,} entries, but model.vocab_size is 64"
        in capsys.readouterr().err
    )
    assert not (resolved.parent / "metrics.jsonl").exists()
    assert not (fits.parent / "metrics.jsonl").exists()
    outcome = "exit 3, for a tokenizer exit 2 (validate reports it too), before step 1"
    note(
        43,
        injected="one token id beyond the vocabulary; a tokenizer larger than it",
        outcome=outcome,
        lost="nothing",
    )


def test_row_44_a_run_ends_with_its_data_and_saves(run: Run, note: Note) -> None:
    resolved = run("run", "training.dataset.repeat=false")
    assert main([str(resolved)]) == 0
    assert (
        "the data ran out after step 7 of 10"
        in (resolved.parent / "logs" / "rank-0.log").read_text()
    )
    assert (resolved.parent / "checkpoint" / "step-7" / "manifest.json").exists()
    outcome = (
        "with one rank and with two: ends after the last whole global batch, with a checkpoint, "
        "exit 0"
    )
    note(44, injected="30 sequences, read once, for 10 steps of 4", outcome=outcome, lost="nothing")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_ranks_that_become_more_and_fewer_over_kills_read_each_row_once_an_epoch(
    tmp_path: Path, processes: int
) -> None:
    numbered, never = tmp_path / "numbered.npy", 99
    # row i begins with id i, and its ids tell where a row was mixed up with another
    np.save(numbered, np.repeat(np.arange(30, dtype=np.uint16)[:, None], 17, axis=1))
    overrides = (
        *EVERY_3,
        "training.local_batch_size=1",
        f"training.dataloader.num_workers={processes}",
    )
    read: dict[int, list[int]] = {}
    for tried, (ranks, dies_in, first) in enumerate([(2, 5, 1), (4, 8, 4), (1, never, 7)]):
        resolved = write_run(
            tmp_path, numbered, "run", *overrides, f"parallelism.data_parallel_shard_degree={ranks}"
        )
        files = [tmp_path / f"read-{tried}-{rank}.jsonl" for rank in range(ranks)]
        codes = work_together(
            resolved,
            {rank: (seams.rows_are_noted, str(files[rank]), dies_in) for rank in range(ranks)},
            count=ranks,
        )
        assert (
            all(code == 0 for code in codes)
            if dies_in == never
            else all(code != 0 for code in codes)
        )
        shares = [
            dict(json.loads(line) for line in file.read_text().splitlines()) for file in files
        ]
        assert all(sorted(share) == list(range(first, min(dies_in, 11))) for share in shares)
        # a step that is done again after a kill counts once: its first doing went with the weights
        # that were lost
        read |= {step: [token for share in shares for token in share[step]] for step in shares[0]}
    stream = [token for step in range(1, 11) for token in read[step]]
    assert (
        sorted(stream[:30]) == list(range(30)) and len(stream) == 40 and len(set(stream[30:])) == 10
    )
    alone, noted = write_run(tmp_path, numbered, "alone", *overrides), tmp_path / "alone.jsonl"
    assert work(alone, seams.rows_are_noted, str(noted), never) == 0
    assert dict(map(json.loads, noted.read_text().splitlines())) == read


@pytest.mark.slow
def test_row_45_reading_that_stalls_is_metered_and_reading_that_ends_never_is_a_hang(
    run: Run, note: Note
) -> None:
    slow, never = (
        run("slow", "checkpoint.enable=false"),
        run("never", "guard.step_timeout_seconds=3"),
    )
    assert work(slow, seams.rows_stall, 5, 0.5) == 0
    seconds = [line["time/data_seconds"] for line in read_metrics(slow.parent / "metrics.jsonl")]
    assert seconds[4] > 0.5
    assert work(never, seams.rows_stall, 5, 10_000.0) == 6
    assert "the step after step 4 takes longer than guard.step_timeout_seconds" in said(never)
    assert "rows_stall" in (never.parent / "logs" / "stacks-rank-0.txt").read_text()
    assert work(never) == 0
    plain, killed = (
        run("plain", "checkpoint.enable=false"),
        run("killed", "training.dataloader.num_workers=2", "checkpoint.enable=false"),
    )
    assert work(plain) == work(killed, seams.loading_process_is_killed, 2) == 0
    assert losses(killed) == losses(plain)
    assert (
        "was killed by SIGKILL; starting a replacement"
        in (killed.parent / "logs" / "rank-0.log").read_text()
    )
    outcome = (
        "time/data_seconds shows it; exit 6 with the stack that reads; a process that is killed "
        "is replaced, and no loss differs"
    )
    injected = (
        "reading takes 0.5 s in step 5; reading never ends; a loading process killed in step 2"
    )
    note(45, injected=injected, outcome=outcome, lost="one interval")
