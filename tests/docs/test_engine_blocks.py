"""The Python examples of docs/training_engine.md run, with what their readers bring."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.integrations.actors.loops import DATA, NUM_TOKENS, flat

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```",
    (ROOT / "docs" / "training_engine.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
VERL_RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal, documents: positions}}
tokenizer: tiny
training: {dataset: {name: text, path: text.txt, packing: documents}, seq_len: 64, steps: 20}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the recipes and a recipe of one's own."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "recipe.yaml").write_text(VERL_RECIPE)
    (tmp_path / "text.txt").write_text("hello\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find_block(text: str) -> str:
    (block,) = [each for each in BLOCKS if text in each]
    return str(block)


def run_block(block: str, **brought: Any) -> dict[str, Any]:
    """Run an example and return its names."""
    names = {"__name__": "example", **brought}
    exec(compile(block, "example", "exec"), names)
    return names


def test_there_are_no_other_examples() -> None:
    assert len(BLOCKS) == 5


def test_a_loop_over_the_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def my_batches(step: int, rank: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        assert (rank, size) == (0, 1)
        # always the same ones, to be learned
        rng = torch.Generator().manual_seed(0)
        for _ in range(2):
            yield torch.randint(200, (2, 17), generator=rng), torch.tensor([17, 9])

    sent: dict[str, Tensor] = {}
    names = run_block(
        find_block('open_engine("recipes'), my_batches=my_batches, send=sent.__setitem__
    )
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 20 and losses[-1] < 0.9 * losses[0]
    assert names["logprobs"].shape == (2, 17)
    assert {tensor.dtype for tensor in sent.values()} == {torch.bfloat16}
    assert (folder / "checkpoints" / "step-20").is_dir()


def test_a_loop_over_the_policy_trainer(folder: Path) -> None:
    def my_rollouts() -> Iterator[tuple[list[Any], list[Any], int]]:
        for seed in range(2):
            parts = flat((5, 7), seed), flat((9,), seed + 9)
            yield [parts[0]], [parts[1]], sum(int(each.loss_mask.sum()) for each in parts)

    names = run_block(find_block('open_policy_trainer("recipes'), my_rollouts=my_rollouts)
    assert names["trainer"].get_policy_version() == 2
    assert (folder / "checkpoints" / "step-2").is_dir()


def test_a_loop_over_torchforges_trainer(folder: Path) -> None:
    block = find_block("TitanTrainer")
    # a smaller model, and fewer and shorter steps
    for old, new in {
        '"name": "qwen3", "flavor": "1.7B"': '"name": "llama3", "flavor": "debugmodel"',
        '"local_batch_size": 16, "seq_len": 1024': '"local_batch_size": 2, "seq_len": 16',
        "range(1, 1001)": "range(1, 3)",
    }.items():
        assert block.count(old) == 1
        block = block.replace(old, new)

    def my_loss(logits: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def my_batches(step: int) -> tuple[list[Any], list[Any]]:
        tokens = torch.arange(32).reshape(2, 16)
        return [{"tokens": tokens}], [{"labels": tokens + 1}]

    names = run_block(block, my_loss=my_loss, my_batches=my_batches)
    assert sorted(names["trainer"].store) == [
        f"policy_ver_{version:010d}.model_state_dict" for version in (1, 2)
    ]


def test_a_loop_over_actors(folder: Path) -> None:
    script = folder / "script.py"
    brought = "from tests.docs import test_engine_blocks\nmy_rollouts = test_engine_blocks.{}\n"
    end = "\n    print(dict(update)['policy_version'], metrics['loss/mean'])\n"
    script.write_text(brought.format("iter_rollouts") + find_block("import spawn") + end)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    health, last = done.stdout.splitlines()
    assert "'running': None" in health and last.startswith("2.0 ")


def iter_rollouts() -> Iterator[tuple[list[Any], int]]:
    """Two steps for one rank."""
    for _ in range(2):
        yield [DATA], NUM_TOKENS


def test_a_loop_over_verls_interface(folder: Path) -> None:
    def sft_loss(
        model_output: dict[str, Tensor], data: dict[str, Any], dp_group: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        mask = data["loss_mask"].values().roll(-1)
        total = -(model_output["log_probs"].values() * mask).sum()
        return total / data["batch_num_tokens"] * data["dp_size"], {}

    def to_jagged(make: Callable[[int], Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor([make(9), make(12)], layout=torch.jagged)

    def my_batches() -> Iterator[dict[str, Any]]:
        for _ in range(2):
            yield {
                "input_ids": to_jagged(torch.arange),
                "loss_mask": to_jagged(lambda length: torch.arange(length) > 1),
                "max_token_len_per_gpu": 64,
            }

    sent: dict[str, Tensor] = {}
    names = run_block(
        find_block("open_verl_engine"),
        sft_loss=sft_loss,
        my_batches=my_batches,
        send=sent.__setitem__,
    )
    assert [len(each) for each in names["log_probs"].unbind()] == [9, 12]
    assert names["output"]["metrics"]["grad_norm"] > 0 and names["rate"] > 0
    assert "model.embed_tokens.weight" in sent
    assert (folder / "checkpoints" / "step-20").is_dir()
