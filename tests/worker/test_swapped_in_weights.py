"""While a model holds copies of its weights, nothing in a run asks for them by name.

The copies have the names of the weights, but other values, no gradients, and no optimizer.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.worker.test_guard import bad_loss, train
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
TINY = ("model.vocab_size=2048", "tokenizer=tiny", "training.steps=4", "training.dataset=tiny")
PAIRS = (
    *TINY[:3],
    "model.attention={mask: block_causal}",
    "training.seq_len=64",
    "loss={name: dpo}",
)
EXPERTS = (
    "model={name: qwen3, flavor: debugmodel_moe, dim: 32, n_heads: 4, n_kv_heads: 2, n_layers: 2, "
    "moe: {num_experts: 4, top_k: 2, hidden_dim: 32}}",
    *TINY[1:],
)
EARLY = ("optimizer={name: adamw, early_step_in_backward: true}",)
WATCHED = (
    "validation={enable: true, freq: 2, steps: 1}",
    "metrics.samples={prompts: [Once], freq: 2, max_new_tokens: 2}",
)


@pytest.fixture
def named_while_swapped_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Functions that read the names of a model's parameters within `swap_in`, and "swapped in"."""
    found: list[str] = []
    depth = 0
    put, named = WorkingWeights._put, nn.Module.named_parameters

    def watched_put(weights: WorkingWeights, which: str) -> None:
        nonlocal depth
        put(weights, which)
        if weights._weights:
            depth += 1 if which == "copy" else -1
            found.append("swapped in")

    def watched_names(module: nn.Module, *given: Any, **options: Any) -> Any:
        caller = sys._getframe(1)
        # parameters() reads no names, and single layers are no concern of the optimizer
        if depth > 0 and hasattr(module, "layers") and caller.f_code.co_name != "parameters":
            found.append(f"{Path(caller.f_code.co_filename).name}: {caller.f_code.co_name}")
        return named(module, *given, **options)

    monkeypatch.setattr(WorkingWeights, "_put", watched_put)
    monkeypatch.setattr(nn.Module, "named_parameters", watched_names)
    yield found
    assert depth == 0


@pytest.mark.parametrize(
    "overrides",
    [
        (*TINY, *WATCHED),
        (*TINY, "loss=chunked_cross_entropy", "activation_checkpoint=full"),
        (*TINY, *EARLY, "training.max_norm=null", "training.global_batch_size=2"),
        (*TINY, "optimizer=schedule_free_adamw", *WATCHED),
        (*EXPERTS, WATCHED[0]),
        PAIRS,
    ],
    ids=["watched", "chunked", "early_step", "averages", "experts", "dpo"],
)
def test_no_run_asks_for_copies_by_name(
    run: Run, overrides: tuple[str, ...], named_while_swapped_in: list[str], tmp_path: Path
) -> None:
    if overrides is PAIRS:
        pair = {"prompt": "Say: a goat", "chosen": "a goat", "rejected": "an owl"}
        (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 4)
        data = f"{{name: preference, path: {tmp_path}/pairs.jsonl}}"
        overrides = (*overrides, f"training.dataset={data}")
    resolved = run("run", *overrides, "training.mixed_precision_param=bfloat16")
    assert main([str(resolved)]) == 0
    assert set(named_while_swapped_in) == {"swapped in"}


def test_nor_does_the_report_of_a_bad_step(run: Run, named_while_swapped_in: list[str]) -> None:
    resolved = run("run", "training.mixed_precision_param=bfloat16", "guard.non_finite=skip")
    train(resolved, bad_loss(3, value=math.nan))
    assert set(named_while_swapped_in) == {"swapped in"}
