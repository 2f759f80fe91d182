"""`titanrun init --kind`: short recipes of fine-tuning that validate and train as they are."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from datasets import Dataset
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from titanrun.cli import init
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.finetuning_template import KINDS
from titanrun.recipe.resolving.resolve import resolve_recipe

CHAT = [{"role": "user", "content": "Say moon"}, {"role": "assistant", "content": "moon"}]
RECORDS: dict[str, dict[str, Any]] = {
    "chat": {"messages": CHAT},
    "preference": {"prompt": "Say moon", "chosen": "moon", "rejected": "sun"},
    "labelled": {"prompt": "Say moon", "completion": "moon", "label": True},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a model and a file of each dataset."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=2048, max_position_embeddings=96, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, tmp_path / "model")
    for name, record in RECORDS.items():
        lines = [json.dumps(record).replace("Say", f"{number} Say") for number in range(200)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(kind: str, file: str, *words: str) -> str:
    data = f"{KINDS[kind].dataset}.jsonl"
    assert init.run(["--kind", kind, "--model", "model", "--data", data, "-o", file, *words]) == 0
    return Path(file).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_at_most_40_lines_that_validate(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for suffix in (".yaml", ".toml"):
        text = write(kind, f"mine{suffix}")
        assert len(text.splitlines()) <= 40
        found = resolve_recipe(f"mine{suffix}", environment={}, should_check_inputs=True)
        assert found.warnings == ()
        runs.append(found.run)
    assert runs[0] == runs[1]
    assert runs[0].training.seq_len == 96 and runs[0].checkpoint.initial_load_in_hf
    told = capsys.readouterr()
    assert told.out == "mine.yaml\nmine.toml\n"
    assert told.err.splitlines()[0] == "next: titanrun validate mine.yaml --level environment"


def test_a_model_without_template_gets_the_one_that_suits_its_tokens(place: Path) -> None:
    (place / "model" / "chat_template.jinja").unlink()
    settings = json.loads((place / "model" / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (place / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "  chat_template: alpaca  # a guess" in write("sft", "mine.yaml")
    found = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True)
    assert found.run.tokenizer.chat_template == "alpaca"


FLAT = {
    "sft": {"Frage": "Say moon", "Antwort": "moon"},
    "dpo": RECORDS["preference"],
    "kto": RECORDS["labelled"],
}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", FLAT)
def test_tables_are_read_by_their_columns(
    kind: str, suffix: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = FLAT[kind]
    records = [{**FLAT[kind], first: f"{number} Say moon"} for number in range(200)]
    table = Dataset.from_list(records)
    getattr(table, f"to_{suffix}")(f"data.{suffix}")
    words = ["--model", "model", "--data", f"data.{suffix}", "-o", "mine.yaml"]
    assert init.run(["--kind", kind, *words]) == 0
    # first records are read and rendered
    found = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True)
    assert found.warnings == ()
    noted = capsys.readouterr().err
    assert ("'Frage' is taken for the prompt" in noted) == (kind == "sft")


def test_what_it_says_is_left_out_when_quiet(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("sft", "mine.yaml", "--quiet")
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_trains(kind: str, place: Path) -> None:
    text = write(kind, "mine.yaml")
    (promised,) = re.findall(r"epochs: \d+  # (\d+) steps: an epoch has", text)
    assert 10 <= int(promised) <= 50
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", "mine.yaml", "dump_folder=run", "device=cpu"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert "held out 10 of 200 " in done.stderr
    assert f"finished: {promised} steps" in done.stderr


# records, context: batch, epochs, held-out records
SMALL = [(4, 96, 1, 10, 2), (30, 96, 2, 3, 2), (64, 2048, 4, 2, 3), (1_000, 96, 16, 1, 50)]


@pytest.mark.parametrize(("records", "context", "batch", "epochs", "held"), SMALL)
def test_batch_epochs_and_held_out_pairs_suit_the_number_of_records(
    records: int, context: int, batch: int, epochs: int, held: int, place: Path
) -> None:
    line = json.dumps(RECORDS["preference"])
    lines = [line.replace("Say", f"{number} Say") for number in range(records)]
    (place / "preference.jsonl").write_text("\n".join(lines))
    config = json.loads((place / "model" / "config.json").read_text())
    (place / "model" / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": context})
    )
    write("dpo", "mine.yaml")
    run = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True).run
    assert (run.training.global_batch_size, run.training.epochs) == (batch, epochs)
    assert run.validation.holdout == held


def test_many_records_are_not_counted(place: Path) -> None:
    line = json.dumps(RECORDS["preference"]) + "\n"
    (place / "preference.jsonl").write_text(line * 20_000)
    text = write("dpo", "mine.yaml")
    for setting in ("global_batch_size: 16 ", "epochs: 1\n", "holdout: 0.05 "):
        assert setting in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "sft"], "--kind sft needs --model"),
        (["--kind", "sft", "--model", "model"], "--kind sft needs --data"),
        (["--data", "chat.jsonl"], "--data needs --kind"),
        (["--kind", "sft", "--model", "model", "--data", "no.jsonl"], "file not found: 'no.jsonl'"),
        (
            ["--kind", "sft", "--model", "hub:Q", "--data", "chat.jsonl"],
            "is not a model on the Hub",
        ),
        (["--kind", "sft", "--model", "none", "--data", "chat.jsonl"], "folder not found"),
        (["--kind", "sft", "--model", ".", "--data", "chat.jsonl"], "has no config.json"),
        (["--kind", "dpo", "--model", "gpt2", "--data", "preference.jsonl"], "of type 'gpt2'"),
        (
            ["--kind", "sft", "--model", "model", "--data", "chat.jsonl", "--full"],
            "--full excludes --kind",
        ),
    ],
)
def test_it_says_what_is_wrong_and_writes_nothing(
    words: list[str], message: str, place: Path
) -> None:
    GPT2Config(n_embd=32, n_layer=1, n_head=2).save_pretrained(place / "gpt2")
    with pytest.raises(ProblemsFound, match=message) as found:
        init.run([*words, "-o", "mine.yaml"])
    assert all(problem.hint for problem in found.value.problems)
    assert not Path("mine.yaml").exists()
