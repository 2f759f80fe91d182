"""Runs on streams that hold documents out: what is validated, and what is trained."""

import gzip
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.components.data.lane_streams import numbers_in, write_numbered
from tests.faults.processes import work_together
from titanrun.components.data.lane_loader import LaneLoader
from titanrun.components.data.token_collator import TokenCollator
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
SHARE = 0.2


def note_rows(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Write the sequences that this process trains and validates into a file, one a line."""
    next_samples, collate = LaneLoader.next_samples, TokenCollator.collate_validation

    def note(kind: str, samples: Any) -> None:
        with path.open("a") as file:
            for row in samples:
                kept = row if row.ndim == 1 else row[0][row[0] > 0]
                file.write(json.dumps([kind, kept.tolist()]) + "\n")

    def train(loader: LaneLoader) -> Any:
        samples = next_samples(loader)
        note("trained", samples)
        return samples

    def validate(collator: TokenCollator, samples: Any, *, num_counted: int) -> Any:
        note("validated", samples[:num_counted])
        return collate(collator, samples, num_counted=num_counted)

    patch.setattr(LaneLoader, "next_samples", train)
    patch.setattr(TokenCollator, "collate_validation", validate)


def note_rows_of_rank(path: Path) -> None:
    """Do so in a process of its own."""
    note_rows(pytest.MonkeyPatch(), path)


def run_on_one(resolved: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        note_rows(patch, resolved.parent / "rows-0.jsonl")
        assert main([str(resolved)]) == 0


def run_on_two(resolved: Path) -> None:
    notes = {rank: (note_rows_of_rank, resolved.parent / f"rows-{rank}.jsonl") for rank in range(2)}
    assert work_together(resolved, notes) == [0, 0]


def count_documents(folder: Path, kind: str) -> Counter[int]:
    """Return how often each document was in a sequence of a kind, by its number."""
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    rows = [
        json.loads(line)
        for path in folder.glob("rows-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    texts = [tokenizer.decode(tokens) for of_kind, tokens in rows if of_kind == kind]
    return Counter(numbers_in("".join(texts)))


def find_held_out(folder: Path) -> set[int]:
    """Return the numbers of the documents that are held out, by the hash of docs/data.md."""
    texts = [
        json.loads(line)["text"]
        for path in folder.iterdir()
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    return {
        number
        for text in texts
        for number in numbers_in(text)
        if xxhash.xxh3_64(b"titanrun holdout 1\x00" + text.encode()).intdigest()
        < math.floor(SHARE * 2**64)
    }


def validation_losses(resolved: Path) -> dict[int, float]:
    return {
        int(line["step"]): line["validation/loss"]
        for line in read_metrics(resolved.parent / "metrics.jsonl")
        if line.get("validation/loss") is not None
    }


def settings(texts: Path, *, steps: int, validation: str, **options: Any) -> list[str]:
    """Return the settings of a run whose sequences are whole documents."""
    dataset = {"name": "text", "path": str(texts), "streaming": True, "window": 8, "packing": None}
    return [
        "tokenizer=tiny",
        "model.vocab_size=2048",
        "model.n_layers=1",
        "model.attention.mask=block_causal",
        f"training.dataset={json.dumps({**dataset, **options})}",
        "training.seq_len=64",
        f"training.steps={steps}",
        "training.dataloader.num_workers=0",
        "checkpoint.interval=5",
        f"validation={{holdout: {SHARE}, local_batch_size: 2, {validation}}}",
    ]


@pytest.mark.parametrize(
    ("start", "ranks"), [(run_on_one, 1), pytest.param(run_on_two, 2, marks=pytest.mark.slow)]
)
def test_exactly_the_held_out_documents_are_validated_also_after_a_resume(
    start: Callable[[Path], None], ranks: int, run: Run, tmp_path: Path
) -> None:
    total = write_numbered(tmp_path / "texts", [40, 30, 35, 45])
    held_out = find_held_out(tmp_path / "texts")
    assert 15 < len(held_out) < 45
    chosen = settings(
        tmp_path / "texts", steps=1000, validation="steps: 100, freq: 10", repeat=False
    )
    if ranks == 2:
        chosen += ["training.local_batch_size=1", "parallelism.data_parallel_shard_degree=2"]
    whole, resumed = run("whole", *chosen), run("resumed", *chosen)
    start(whole)
    losses = validation_losses(whole)
    assert {1, 10, 20} < set(losses)
    # by all ranks together, once in each validation
    assert count_documents(whole.parent, "validated") == dict.fromkeys(held_out, len(losses))
    others = set(range(total)) - held_out
    assert count_documents(whole.parent, "trained") == dict.fromkeys(others, 1)
    name = "checkpoint/step-5"
    shutil.copytree(whole.parent / name, resumed.parent / name)
    start(resumed)
    later = {step: loss for step, loss in losses.items() if step > 5}
    assert later and validation_losses(resumed) == later
    assert count_documents(resumed.parent, "validated") == dict.fromkeys(held_out, len(later))
    assert not count_documents(resumed.parent, "trained").keys() & held_out


def test_a_short_validation_reads_the_first_held_out_documents(run: Run, tmp_path: Path) -> None:
    """And training leaves out those that no validation reads, too."""
    write_numbered(tmp_path / "texts", [40, 30, 35, 45])
    held_out = find_held_out(tmp_path / "texts")
    resolved = run("run", *settings(tmp_path / "texts", steps=40, validation="steps: 3, freq: 40"))
    run_on_one(resolved)
    assert set(validation_losses(resolved)) == {1, 40}
    assert count_documents(resolved.parent, "validated") == dict.fromkeys(sorted(held_out)[:6], 2)
    trained = count_documents(resolved.parent, "trained")
    assert len(trained) > 100 and not trained.keys() & held_out
