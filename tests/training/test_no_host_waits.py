"""No step of any family waits for the device.

The meta device, which has no values, stands for the accelerator.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.host_waits import ALLOWED, HostWaitError, RaiseOnHostWait
from tests.training.meta_engine import (
    META,
    build_meta_engine,
    draw_batch,
    resolve_text,
    train_step,
)
from titanrun.config.registry import iter_loaded_choice_names
from titanrun.distributed.device import is_accelerator
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.builtins import register_builtins
from titanrun.training.nonfinite import NonFiniteGuard

# PyTorch's compiler warns of itself
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
FOREACH = "{name: adamw, implementation: foreach}"
DOCUMENTS = "mask: block_causal, documents: eos"
DATA = "training: {dataset: tiny, seq_len: 64}"
IMAGES = "training: {dataset: {name: tiny_images, image_size: 32}, seq_len: 10}"
PLAIN = f"optimizer: {FOREACH}\n{DATA}"
SIZES = "flavor: debugmodel, n_layers: 2"
CASES = {
    "llama3": f"model: {{name: llama3, {SIZES}}}\n{PLAIN}",
    "documents": f"model: {{name: llama3, {SIZES}, attention: {{backend: sdpa, {DOCUMENTS}}}}}\n"
    f"optimizer: {{name: adamw, state_dtype: bfloat16}}\n{DATA}",
    "documents of varlen": f"model: {{name: llama3, {SIZES}, attention: {{backend: varlen, "
    f"{DOCUMENTS}}}}}\n{PLAIN}",
    "gpt_oss": f"model: {{name: gpt_oss, {SIZES}, attention: {{backend: sdpa}}}}\n{PLAIN}",
    "deepseek_v3": f"model: {{name: deepseek_v3, {SIZES}}}\n{PLAIN}",
    "llama4": f"model: {{name: llama4, {SIZES}}}\n{PLAIN}",
    "qwen3 with Muon": f"model: {{name: qwen3, {SIZES}}}\noptimizer: {{name: muon}}\n{DATA}",
    "experts of qwen3": "model: {name: qwen3, flavor: debugmodel_moe, n_layers: 2, "
    f"moe: {{num_experts: 8, top_k: 2}}}}\n{PLAIN}",
    "decoder": f"model: {{name: decoder, {SIZES}}}\n{PLAIN}",
    "transformers": f"model: {{name: transformers, flavor: debugmodel}}\n{PLAIN}",
    "flux": "model: {name: flux, flavor: tiny, encoder: {max_t5_encoding_len: 6}}\n"
    f"loss: flow_matching\noptimizer: {FOREACH}\n{IMAGES}",
    "head and loss in one": f"model: {{name: llama3, {SIZES}}}\noptimizer: adamw_8bit\n"
    f"loss: chunked_cross_entropy\n{DATA}",
}
VALUES = torch.empty(4, device=META)
MASK = torch.empty(4, dtype=torch.bool, device=META)
READS: dict[str, Any] = {
    "item": lambda: VALUES[0].item(),
    "tolist": lambda: VALUES.tolist(),
    "if": lambda: bool(VALUES[0]),
    "nonzero": lambda: MASK.nonzero(),
    "masked_select": lambda: VALUES[MASK],
    "masked_select by name": lambda: VALUES.masked_select(MASK),
    "unique": lambda: VALUES.unique(),
    "unique_consecutive": lambda: VALUES.unique_consecutive(),
    "equal": lambda: torch.equal(VALUES, VALUES),
    "repeat_interleave": lambda: VALUES.repeat_interleave(MASK.long()),
    "bincount": lambda: MASK.long().bincount(),
    "assignment to a mask": lambda: torch.ops.aten.index_put(VALUES, [MASK], VALUES[:1]),
    "a copy to the host": lambda: VALUES.to("cpu"),
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_no_step_reads_a_value_of_the_device(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "name: transformers" in text:
        # its own wait is in ALLOWED: without it the rest of the step is looked at
        monkeypatch.setattr("transformers.masking_utils.is_tracing", lambda values: True)
    recipe = resolve_text(tmp_path, text)
    engine, guard = build_meta_engine(recipe), NonFiniteGuard(device=META)
    batches = [draw_batch(recipe) for _ in range(2)]
    with RaiseOnHostWait():
        for step in range(1, 4):
            train_step(engine, guard, step, batches)
    assert engine.steps_done == 3


def test_every_family_is_among_the_cases(tmp_path: Path) -> None:
    register_builtins()
    assert is_accelerator(META)
    trained = {resolve_text(tmp_path, text).model.name for text in CASES.values()}
    assert trained == set(iter_loaded_choice_names(ModelConfig))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_of_the_device_are_found(read: Any) -> None:
    with RaiseOnHostWait(), pytest.raises(HostWaitError):
        read()


def test_reads_of_the_host_are_not() -> None:
    with RaiseOnHostWait():
        values = torch.arange(4)
        assert values[values > 1].tolist() == [2, 3] and values.to(META).device == META


def test_a_step_waits_where_it_is_allowed_to(tmp_path: Path) -> None:
    recipe = resolve_text(tmp_path, CASES["documents of varlen"])
    library = resolve_text(tmp_path, CASES["transformers"])
    engine, guard = build_meta_engine(recipe), NonFiniteGuard(device=META)
    known = draw_batch(recipe)
    train_step(engine, guard, 1, [known])
    waiting = {
        "documents numbered on the device": lambda: train_step(
            engine, guard, 2, [replace(known, document_starts=None)]
        ),
        "classes of transformers": lambda: train_step(
            build_meta_engine(library), NonFiniteGuard(device=META), 1, [draw_batch(library)]
        ),
        "policies skip and rollback": lambda: train_step(
            build_meta_engine(recipe), NonFiniteGuard("skip", META), 1, [known]
        ),
        "a logged step": guard.read,
    }
    assert waiting.keys() == ALLOWED.keys()
    for case, (operator, _) in ALLOWED.items():
        with RaiseOnHostWait(), pytest.raises(HostWaitError) as found:
            waiting[case]()
        assert found.value.operator == operator, case
