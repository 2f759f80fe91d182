"""What the log of a run says about its streams and the mixtures that it reads."""

import json
from pathlib import Path

import pytest

from tests.components.data.fragile_server import serve_files
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.plan.stream_reading import count_streams
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.worker.build.build_data import DataParallelRank, build_dataset, build_tokenizer
from titanrun.worker.build.build_stream_loader import (
    build_stream_loader,
    log_training_streams,
    plan_training_streams,
)

MIXTURE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset:
    name: mixture
    sources:
      - {dataset: {name: text, path: web/*.jsonl%s}, weight: 0.7}
      - {dataset: {name: text, path: books.jsonl}, weight: 0.3}
  seq_len: 32
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web").mkdir()
    for name in ("web/a", "web/b", "books"):
        lines = [json.dumps({"text": f"{name} {number:04}"}) + "\n" for number in range(100)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def load(folder: Path, text: str, *overrides: str) -> Recipe:
    (folder / "r.yaml").write_text(text)
    return load_resolved_text(resolve_recipe("r.yaml", overrides, environment={}).text)


def list_stream_lines(recipe: Recipe, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level("INFO"):
        log_training_streams(recipe, plan_training_streams(recipe, RankGroup()))
    return caplog.messages


def test_the_log_tells_files_and_shares_of_streams(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = sum(file.stat().st_size for file in folder.glob("web/*")) / 1024
    assert list_stream_lines(load(folder, MIXTURE % ", streaming: true"), caplog) == [
        f"stream 'web/*.jsonl': 2 files, {size:.1f} KiB",
        "the mixture reads 70% of source 0, 'web/*.jsonl'",
        "the mixture reads 30% of source 1, 'books.jsonl'",
    ]


def test_huge_weights_are_shares_too(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    huge = MIXTURE.replace("0.7", "1.0e+308").replace("0.3", "1.0e+308") % ", streaming: true"
    recipe = load(folder, huge)
    assert count_streams(recipe.training.dataset) == (1, 0.5)
    assert "the mixture reads 50% of source 1, 'books.jsonl'" in list_stream_lines(recipe, caplog)


def test_a_single_stream_has_no_shares(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = "training.dataset={name: text, path: books.jsonl, streaming: true}"
    (line,) = list_stream_lines(load(folder, MIXTURE % "", stream), caplog)
    assert line.startswith("stream 'books.jsonl': 1 file, ")


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        (("training", "dataset"), ""),
        (("validation", "dataset"), "validation: "),
        (("validation", "further", 0, "dataset"), "validation.further[0]: "),
    ],
)
def test_shares_of_a_validation_mixture_are_told_as_its_own(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    path: tuple[str | int, ...],
    prefix: str,
) -> None:
    recipe = load(folder, MIXTURE % "")
    with caplog.at_level("INFO"):
        build_dataset(
            recipe.training.dataset,
            path,
            recipe,
            tokenizer=build_tokenizer(recipe),
            seq_len=recipe.training.seq_len,
            run_dir=folder,
        )
    lines = [line for line in caplog.messages if "an epoch of the mixture" in line]
    assert [line.partition(" sequences of ")[2].partition(":")[0] for line in lines] == [
        "source 0, 'web/*.jsonl'",
        "source 1, 'books.jsonl'",
    ]
    assert all(line.startswith(f"{prefix}an epoch of the mixture reads ") for line in lines)


@pytest.mark.timeout(60)
def test_a_preview_is_as_patient_as_the_run(folder: Path) -> None:
    """It waited for 15 minutes, whatever the recipe says."""
    with serve_files() as server:
        server.files["a.jsonl"] = b'{"text": "once"}\n' * 100
        recipe = load(
            folder,
            MIXTURE % "",
            f'training.dataset={{name: text, path: "{server.url}/a.jsonl", streaming: true}}',
            "training.dataloader.retry_timeout=1s",
        )
        plans, tokenizer = plan_training_streams(recipe, RankGroup()), build_tokenizer(recipe)
        assert tokenizer is not None
        loader = build_stream_loader(
            recipe, tokenizer, None, DataParallelRank(), RankGroup(), plans
        )
        server.status["a.jsonl"] = 503
        with pytest.raises(ProblemsFound, match="503 Service Unavailable"):
            loader.next_samples()
