"""Ten steps of five families, of llama3 with documents as well, that torchtitan 0.2.2 recorded on a
CPU in fp32, replayed: first weights
are those of seed 0 here, which torchtitan loaded; rows and settings are its own. The rows are the
start of the shipped corpus, so that its documents are read again, too: streamed and indexed.

Where torchtitan has a defect that titanrun does not copy, the run is replayed with the defect, to
the last digits, and without.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.models.deepseek_v3.model import DeepseekV3
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

RECORD = json.loads(Path(__file__).with_name("torchtitan.json").read_text(encoding="utf-8"))
RECIPE = """
version: 1
name: torchtitan
device: cpu
model: {model}
tokenizer: tiny
optimizer: {{lr: 8.0e-4}}
lr_scheduler: {{warmup_steps: 2, total_steps: 10, decay_ratio: 0.8}}
training:
  dataset: {dataset}
  local_batch_size: 4
  seq_len: 64
  steps: 10
  mixed_precision_param: float32
metrics: {{log_freq: 1}}
debug: {{seed: 0}}
"""
# two units in the last place of fp32, as in test_reference.py
TWO_ULP = 2.4e-7
NEVER_UPDATED = ("model.moe.load_balance_coeff=null",)


@pytest.mark.parametrize(
    "family", ["llama3", "llama3_flex", "qwen3", pytest.param("llama4", marks=pytest.mark.slow)]
)
def test_losses_norms_and_rates_are_those_that_torchtitan_recorded(
    family: str, tmp_path: Path
) -> None:
    assert max(differences(family, tmp_path)) <= TWO_ULP


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "indexed"])
@pytest.mark.parametrize("family", ["llama3", "llama3_flex"])
def test_documents_read_as_c4_test_have_the_recorded_losses(
    family: str, tmp_path: Path, *, streaming: bool
) -> None:
    """Document masks, which llama3_flex has, follow from where documents of the files end."""
    documents = tmp_path / "c4_test"
    documents.mkdir()
    shutil.copyfile(TinyTokenizerConfig().folder / "train.jsonl", documents / "data.json")
    dataset = {
        "name": "c4_test",
        "path": str(documents),
        "shuffle": False,
        "streaming": streaming,
    }
    overrides = ["training.lanes=1"] if streaming else []
    assert max(differences(family, tmp_path, *overrides, dataset=dataset)) <= TWO_ULP
    log = (tmp_path / "logs" / "rank-0.log").read_text()
    assert ("of a stream in 1 lane" in log) == streaming


@pytest.mark.slow
def test_qwen3_with_experts_differs_by_the_bias_that_torchtitan_never_updates(
    tmp_path: Path,
) -> None:
    assert max(differences("qwen3_moe", tmp_path / "with", *NEVER_UPDATED)) <= TWO_ULP
    loss, grad_norm = differences("qwen3_moe", tmp_path / "without")
    assert TWO_ULP < loss < 1e-3
    assert grad_norm < 5e-3


@pytest.mark.slow
def test_deepseek_v3_differs_by_the_epsilon_that_torchtitan_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, grad_norm = differences("deepseek_v3", tmp_path / "without")
    assert TWO_ULP < loss < 1e-6
    assert grad_norm < 1e-5
    forward = DeepseekV3.forward

    def without_epsilon(model: Any, *given: Tensor) -> Tensor:
        model.norm.eps = None
        return forward(model, *given)

    monkeypatch.setattr(DeepseekV3, "forward", without_epsilon)
    assert max(differences("deepseek_v3", tmp_path / "with")) <= TWO_ULP


def differences(
    family: str, folder: Path, *overrides: str, dataset: dict[str, Any] | None = None
) -> tuple[float, float]:
    """How far losses and gradient norms are from the recorded ones, relatively, at most; learning
    rates have to be equal. Without a dataset, the recorded rows are read."""
    folder.mkdir(exist_ok=True)
    tokens, recipe, resolved = (
        folder / "tokens.npy",
        folder / "recipe.yaml",
        folder / "resolved.yaml",
    )
    np.save(tokens, np.array(RECORD["tokens"], dtype=np.uint16))
    run = RECORD["runs"][family]
    dataset = dataset or {"name": "tokens", "path": str(tokens)}
    recipe.write_text(RECIPE.format(model=json.dumps(run["model"]), dataset=json.dumps(dataset)))
    resolved.write_text(resolve_recipe(str(recipe), overrides, environment={}).text)
    assert main([str(resolved)]) == 0
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["lr"] for line in lines] == run["lr"]
    loss, norm = (
        max(abs(line[name] / other - 1) for line, other in zip(lines, run[name], strict=True))
        for name in ("loss", "grad_norm")
    )
    print(
        f"{family} {' '.join(overrides)}: losses within {loss:.1e}, gradient norms within "
        f"{norm:.1e}"
    )
    return loss, norm
