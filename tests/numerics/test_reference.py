"""A run that torchtitan v0.2.2 recorded on a CPU in fp32, replayed as a plain recipe: initial
weights, rows and settings are its own.

The record is not part of the repository; where it lies beside the clone, these tests run.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

RECORD = Path(__file__).parents[3] / "shared" / "reference" / "llama3_debug_fp32"
RECIPE = """
version: 1
name: reference
device: cpu
model: {{name: llama3, flavor: debugmodel, hf_assets_path: {record}}}
tokenizer: {tokenizer}
optimizer: {{lr: 8.0e-4}}
lr_scheduler: {{warmup_steps: 2, total_steps: 30, decay_ratio: 0.8}}
training:
  dataset: {dataset}
  local_batch_size: 8
  seq_len: 256
  steps: {steps}
  mixed_precision_param: float32
checkpoint: {{initial_load_in_hf: true}}
metrics: {{log_freq: 1}}
"""

# Two units in the last place of fp32. With the recorder's vector instructions a plain loop gives
# all nine digits; other CPUs
# sum in another order, and then a plain loop is one unit off too, at 1.1e-7.
TWO_ULP = 2.4e-7
BOS, EOS = 2002, 2003


pytestmark = pytest.mark.skipif(
    not RECORD.is_dir(), reason="the recorded run does not lie beside this clone"
)


@pytest.mark.parametrize("steps", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_losses_norms_and_rates_are_those_that_torchtitan_recorded(
    tmp_path: Path, steps: int
) -> None:
    dataset = {"name": "tokens", "path": f"{RECORD}/tokens.npy"}
    assert_recorded_steps(tmp_path, steps, dataset=dataset)


@pytest.mark.parametrize("steps", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_stream_of_the_documents_of_c4_test_has_the_recorded_losses(
    tmp_path: Path, steps: int
) -> None:
    """The documents are those in the recorded rows, and so is each token."""
    (tmp_path / "c4_test").mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in recorded_documents()]
    assert len(lines) == 94
    (tmp_path / "c4_test" / "data.json").write_text("".join(lines))
    write_character_tokenizer(tmp_path / "characters")
    dataset = {
        "name": "c4_test",
        "path": str(tmp_path / "c4_test"),
        "streaming": True,
        "shuffle": False,
    }
    tokenizer = {"path": str(tmp_path / "characters")}
    assert_recorded_steps(tmp_path, steps, "training.lanes=1", dataset=dataset, tokenizer=tokenizer)
    assert not list(tmp_path.rglob("*.npy"))


def recorded_documents() -> list[str]:
    """Return the texts between the first and last ids of documents; the last one is cut off."""
    ids = np.load(RECORD / "tokens.npy").reshape(-1).tolist()
    text = "".join(chr(token) for token in ids if token != BOS)
    return text.split(chr(EOS))


def write_character_tokenizer(folder: Path) -> None:
    """Write a tokenizer with torchtitan's ids: its sample tokenizer has one for each character."""
    characters = {chr(token): token for token in range(33, 127)}
    model = tokenizers.models.BPE({**characters, "<bos>": BOS, "<eos>": EOS}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def assert_recorded_steps(
    folder: Path, steps: int, *overrides: str, dataset: Any, tokenizer: Any = None
) -> None:
    """Train, and compare each step with the recorded one."""
    recipe, resolved = folder / "reference.yaml", folder / "resolved.yaml"
    recipe.write_text(
        RECIPE.format(
            record=RECORD,
            steps=steps,
            dataset=json.dumps(dataset),
            tokenizer=json.dumps(tokenizer),
        )
    )
    resolved.write_text(resolve_recipe(str(recipe), overrides, environment={}).text)
    assert main([str(resolved)]) == 0
    recorded = [json.loads(line) for line in (RECORD / "steps.jsonl").read_text().splitlines()][
        :steps
    ]
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["lr"] for line in lines] == [line["lr"] for line in recorded]
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in lines] == pytest.approx(
            [line[name] for line in recorded], rel=TWO_ULP, abs=0
        )
