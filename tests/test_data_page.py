"""Every recipe on the data page tokenizes its data and trains, from files and from a hub on this
machine."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.data.test_hub_dataset import COMMIT, FILES, hub_environment  # noqa: F401
from titanrun.components.metrics.spec.metrics_file import read_metrics

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
MODEL = "model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}"
TEXTS = [f"a text of the collection, number {number}" for number in range(100)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
ON_THIS_HUB = {
    "PUT-THE-COMMIT-HERE": COMMIT,
    "HuggingFaceFW/fineweb-edu": "owner/words",
    "sample-10BT": "words",
    "repo: HuggingFaceH4/ultrachat_200k, split: train_sft": "repo: owner/words, subset: chats",
    "repo: allenai/tulu-3-sft-mixture": "repo: owner/words, subset: chats",
    "window: 2048": "window: 4",
}
SIZES = ("training.seq_len=40", "validation.seq_len=12", "training.steps=2")
SMALL_RUN = ("model.n_layers=1", "model.dim=32", "metrics.log_freq=1", "dump_folder=run")
# as many as lanes, which by default are those of a global batch of 256
FILES_OF_STREAM = 64


def write_files(folder: Path) -> None:
    """Write the files that the page names."""
    for name in ("data/a.jsonl", "held_out.jsonl", "held_out_code.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(LINES)
    compressed = bytes(pa.compress(LINES.encode(), codec="zstd", asbytes=True))
    for number in range(FILES_OF_STREAM):
        (folder / "data" / f"b{number}.jsonl.zst").write_bytes(compressed)
    (folder / "chats.jsonl").write_bytes(FILES["chats/train-0.jsonl"])
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text(" ".join(TEXTS))
    (folder / "code").mkdir()
    (folder / "code" / "a.jsonl").write_text(
        "".join(json.dumps({"code": text}) + "\n" for text in TEXTS)
    )
    (folder / "web").mkdir()
    for number in range(8):
        pq.write_table(pa.table({"text": TEXTS}), folder / "web" / f"{number}.parquet")
    columns = {"title": TEXTS, "body": [text * 9 for text in TEXTS]}
    rated = {"language": ["en"] * 100, "quality": [0.9] * 100}
    pq.write_table(pa.table({**columns, **rated}), folder / "articles.parquet")


def complete(example: str) -> str:
    """Return a whole recipe with an example of the page in it."""
    for written, meant in ON_THIS_HUB.items():
        example = example.replace(written, meant)
    if example.startswith("version"):
        return example
    parts = ["version: 1", MODEL, "tokenizer: tiny", "training:"]
    if example.startswith("training:"):
        own_model = [] if "model:" in example else [MODEL]
        return "\n".join(["version: 1", *own_model, "tokenizer: tiny", example])
    if not example.startswith("dataset:"):
        return "\n".join([*parts, '  dataset: {name: text, path: "data/*.jsonl"}', example])
    return "\n".join([*parts, *(f"  {line}" for line in example.splitlines())])


@pytest.fixture
def titanrun(
    tmp_path: Path,
    hub_environment: dict[str, str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Runs a command in a folder with the files of the page."""
    for number in range(8):
        monkeypatch.setitem(FILES, f"words/train-{number}.jsonl", LINES.encode())
    write_files(tmp_path)

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "titanrun", *command],
            cwd=tmp_path,
            env=hub_environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_example_of_the_page_tokenizes_its_data_and_trains(
    number: int, tmp_path: Path, titanrun: Callable[..., str]
) -> None:
    recipe = complete(EXAMPLES[number])
    (tmp_path / "recipe.yaml").write_text(recipe)
    if "repo:" in recipe and "revision:" not in recipe:
        # records the commit of the branch
        titanrun("download", "recipe.yaml")
    assert "training.dataset: " in titanrun("data", "build", "recipe.yaml", *SIZES)
    titanrun("train", "recipe.yaml", *SIZES, *SMALL_RUN)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(0 < line["loss"] < 20 for line in lines)
    # a stream is read by the run itself
    assert ("data/documents" in lines[0]) == ("streaming: true" in EXAMPLES[number])
    assert ("validation/loss" in lines[0]) == ("validation:" in EXAMPLES[number])
