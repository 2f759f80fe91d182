"""What to type after an export, and how a folder without data is evaluated."""

import json
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from titanrun.cli.checkpoint_convert import check_adapter_options, list_uses
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe import builtins

TEXTS = TinyTokenizerConfig().folder / "held_out.jsonl"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=2048, max_position_embeddings=96, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "my model")
    for file in TinyTokenizerConfig().folder.glob("tokenizer*.json"):
        copy(file, tmp_path / "my model")
    return tmp_path / "my model"


@pytest.mark.parametrize(
    ("options", "commands"),
    [
        ({"format": "hf"}, ["generate OUT", "push runs/a OWNER/NAME"]),
        ({"format": "hf", "template": "x"}, ["chat OUT", "push runs/a OWNER/NAME"]),
        ({"format": "hf", "adapter": True}, ["push runs/a OWNER/NAME --format adapter"]),
        ({"format": "adapter", "adapter": True}, ["push runs/a OWNER/NAME --format adapter"]),
        ({"format": "gguf"}, ["push runs/a OWNER/NAME --format gguf"]),
        ({"format": "torch"}, ["serve runs/a"]),
        ({"format": "hf", "quantize": "int4"}, ["serve runs/a"]),
    ],
)
def test_an_export_is_used_and_published(
    options: Mapping[str, Any], commands: list[str], model: Path
) -> None:
    if "template" in options:
        (model / "chat_template.jinja").write_text("{{ messages }}")
    if "adapter" in options:
        (model / "config.json").unlink()
    asked = {"place": "runs/a", "out": str(model), "quantize": None, **options}
    uses = list_uses(Namespace(**asked))
    found = [" ".join(words).replace(str(model), "OUT") for words in uses]
    assert [text.partition(" --prompt")[0] for text in found] == commands


@pytest.mark.parametrize(
    ("options", "converters", "hint"),
    [
        ({}, [], "use --format hf"),
        ({"merge": True}, ["lora"], "use --format hf, or omit --merge"),
        ({"quantize": "int8_weight_only"}, ["lora"], "omit --quantize, or use --format hf --merge"),
    ],
)
def test_adapters_alone_are_neither_merged_nor_quantized(
    options: Mapping[str, Any], converters: list[str], hint: str
) -> None:
    builtins.register_builtins()
    asked = {"place": "runs/a", "format": "adapter", "merge": False, "quantize": None, **options}
    with pytest.raises(ProblemsFound) as found:
        check_adapter_options(Namespace(**asked), {"converters": converters, "version": 1})
    assert found.value.problems[0].hint == hint
    whole = {"merge": False, "quantize": None}
    check_adapter_options(Namespace(**{**asked, **whole}), {"converters": [{"name": "qlora"}]})


@pytest.mark.parametrize("written", ["hf", "torch"])
def test_the_export_of_a_reward_model_is_not_talked_to(written: str, model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    asked = Namespace(place="runs/a", out=str(model), quantize=None, format=written)
    assert list_uses(asked, has_replies=False) == [["push", "runs/a", "OWNER/NAME"]]


@pytest.mark.parametrize("command", ["chat", "serve", "generate"])
def test_a_folder_of_a_reward_model_gives_no_replies(command: str, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = ["LlamaForSequenceClassification"]
    (model / "config.json").write_text(json.dumps(config))
    words = ["--prompt", "Say moon"] if command == "generate" else []
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", command, str(model), *words],
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    told = "is a LlamaForSequenceClassification: a reward model gives scores, not replies"
    assert told in done.stderr and "rl.rewards: [{name: model, path: RUN}]" in done.stderr


def test_a_folder_is_evaluated_on_the_data_that_the_help_asks_for(model: Path) -> None:
    def evaluate(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "titanrun", "eval", model.name, *words]
        return subprocess.run(
            command, cwd=model.parent, capture_output=True, text=True, check=False
        )

    refused = evaluate()
    assert refused.returncode == 2
    assert "'my model' is a model without data to evaluate it on" in refused.stderr
    (line,) = (line for line in refused.stderr.splitlines() if "titanrun eval" in line)
    shown = shlex.split(line.partition("titanrun eval ")[2].rpartition(";")[0])
    assert shown[0] == model.name
    copy(TEXTS, model.parent / "texts.jsonl")
    done = evaluate(shown[1].replace("FILE", "texts.jsonl"), "--json")
    assert done.returncode == 0, done.stderr
    (result,) = map(json.loads, done.stdout.splitlines())
    # a model of random weights guesses
    assert result["loss"] == pytest.approx(7.62, abs=0.2)
