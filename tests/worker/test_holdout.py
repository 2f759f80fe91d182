"""Documents that a run holds out, against a run whose files were split beforehand."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import xxhash

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
TEXTS = [
    {"text": f"It is {number} o'clock in the {number % 7}th of all towns.", "town": number % 7}
    for number in range(40)
]
COMMON = (
    "model.vocab_size=2048",
    "model.n_layers=1",
    "tokenizer=tiny",
    "training.steps=3",
    "training.seq_len=48",
    "validation.local_batch_size=2",
)


def write(path: Path, records: Iterable[object]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"{{name: text, path: {path}, packing: null}}"


def is_held_out(key: str, share: float) -> bool:
    digest = xxhash.xxh3_64(b"titanrun holdout 1\x00" + key.encode()).intdigest()
    return digest < math.floor(share * 2**64)


def train(run: Run, name: str, *overrides: str) -> list[tuple[float, float | None]]:
    resolved = run(name, *COMMON, *overrides)
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    return [(line["loss"], line.get("validation/loss")) for line in lines]


@pytest.mark.parametrize("by", [None, "town"])
def test_training_leaves_held_out_documents_out_and_validates_them(
    by: str | None, run: Run, tmp_path: Path
) -> None:
    held_out = [
        record
        for record in TEXTS
        if is_held_out(json.dumps(record[by]) if by else str(record["text"]), 0.3)
    ]
    assert 4 < len(held_out) < 24
    whole = write(tmp_path / "all.jsonl", TEXTS)
    kept = write(tmp_path / "kept.jsonl", (one for one in TEXTS if one not in held_out))
    rest = write(tmp_path / "rest.jsonl", held_out)
    column = [f"validation.holdout_by={by}"] if by else []
    split = train(run, "split", f"training.dataset={whole}", "validation.holdout=0.3", *column)
    apart = train(
        run,
        "apart",
        f"training.dataset={kept}",
        "validation.enable=true",
        f"validation.dataset={rest}",
    )
    assert split == apart and split[0][1] is not None
    # they stay left out while validation is off
    assert [loss for loss, _ in split] == [
        loss
        for loss, _ in train(
            run,
            "off",
            f"training.dataset={whole}",
            "validation.holdout=0.3",
            "validation.enable=false",
            *column,
        )
    ]


def test_eval_measures_the_held_out_documents(run: Run, tmp_path: Path) -> None:
    dataset = f"training.dataset={write(tmp_path / 'all.jsonl', TEXTS)}"
    losses = train(run, "run", dataset, "validation.holdout=10")
    start = f"checkpoint.initial_load_path={tmp_path / 'run'}"
    measured = run("measured", *COMMON, "kind=eval", dataset, "validation.holdout=10", start)
    assert main([str(measured)]) == 0
    (task,) = json.loads((measured.parent / "evaluation.json").read_text())["tasks"]
    assert task["data"] == "validation.holdout" and task["rows"] == 10
    assert task["loss"] == pytest.approx(losses[-1][1], rel=1e-6)


def test_it_is_enabled_where_documents_are_held_out(run: Run, tmp_path: Path) -> None:
    dataset = f"training.dataset={write(tmp_path / 'all.jsonl', TEXTS)}"
    resolved = load_resolved(run("run", *COMMON, dataset, "validation.holdout=10"))
    assert resolved.validation.enable is True and resolved.validation.dataset is None
    assert type(resolved.validation.holdout) is int
    assert load_resolved(run("other", *COMMON, dataset)).validation.enable is False


def test_another_split_is_other_data_which_a_resume_may_be_allowed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = f"training.dataset={write(tmp_path / 'all.jsonl', TEXTS)}"
    train(run, "run", dataset, "validation.holdout=10")
    longer = [setting.replace("steps=3", "steps=4") for setting in COMMON]
    other = (*longer, dataset, "validation.holdout=5")
    assert main([str(run("run", *other))]) == 3
    assert "was trained on other data" in capsys.readouterr().err
    assert main([str(run("run", *other, "checkpoint.allow_change=[validation.holdout]"))]) == 0
    assert "starting with the new data" in capsys.readouterr().err


def test_too_few_documents_are_a_conflict_at_the_setting(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = f"training.dataset={write(tmp_path / 'all.jsonl', TEXTS[:5])}"
    assert main([str(run("run", *COMMON, dataset, "validation.holdout=4"))]) == 2
    shown = capsys.readouterr().err
    assert "1 of the 5 documents" in shown and "validation.holdout" in shown


def test_one_text_file_is_refused_with_what_helps(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.txt").write_text("one text")
    dataset = f"training.dataset={{name: text, path: {tmp_path}/one.txt}}"
    assert main([str(run("run", *COMMON, dataset, "validation.holdout=0.5"))]) != 0
    said = capsys.readouterr().err
    assert "no share is enough for so few (a .txt file is one document): write a jsonl file" in said
