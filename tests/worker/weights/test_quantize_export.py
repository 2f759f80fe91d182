"""Quantised exports hold what torchao makes of the weights, and a model that was trained for it
computes what it did in training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.worker.test_lora import job
from titanrun.components.converters.quantization_config import SCHEMES
from titanrun.components.converters.torchao_quantization import build_torchao_config
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.torchao_import import import_torchao
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.worker.rank_main import main
from titanrun.worker.weights.saved_weights import build_meta_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Run = Callable[..., Path]
QAT = "converters=[{name: qat, scheme: %s}]"
EIGHT_AND_FOUR = "int8_dynamic_activation_int4_weight"


@pytest.fixture
def plain(run: Run) -> Path:
    """The last checkpoint of a short run."""
    resolved = run("plain", "training.steps=4")
    assert main([str(resolved)]) == 0
    return resolved.parent / "checkpoint" / "step-4"


def ids() -> Tensor:
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name != "int8_weight_only" else [])
        for name in SCHEMES
    ],
)
def test_transformers_opens_what_torchao_makes_of_the_weights(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, scheme: Any
) -> None:
    for folder, asked in (("whole", {}), ("small", {"quantize": scheme})):
        assert (
            job(
                monkeypatch,
                do="export",
                checkpoint=str(plain),
                out=str(tmp_path / folder),
                format="hf",
                **asked,
            )
            == 0
        )
    assert "skipped output: 'output' is in its name" in capsys.readouterr().err
    theirs, ours = (
        AutoModelForCausalLM.from_pretrained(tmp_path / folder).eval()
        for folder in ("whole", "small")
    )
    import_torchao("quantization").quantize_(
        theirs,
        build_torchao_config(scheme, 32),
        filter_fn=lambda module, name: isinstance(module, nn.Linear) and name != "lm_head",
    )
    with torch.no_grad():
        assert torch.equal(ours(ids()).logits, theirs(ids()).logits)
    sizes = [
        (tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "small")
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_other_formats_hold_the_same_under_titanruns_names(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    asked = {"quantize": "int4_weight_only", "group_size": 64, "format": form}
    assert (
        job(monkeypatch, do="export", checkpoint=str(plain), out=str(tmp_path / "out"), **asked)
        == 0
    )
    if form == "torch":
        found = torch.load(tmp_path / "out", weights_only=True)
    else:
        with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
            parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            unflatten = import_torchao(
                "prototype.safetensors.safetensors_support"
            ).unflatten_tensor_state_dict
            found, rest = unflatten(parts, file.metadata())
            assert rest == {}
    # w2 has rows of 64, the others of 32
    packed = {
        name
        for name, tensor in found.items()
        if type(tensor).__name__ == "IntxUnpackedToInt8Tensor"
    }
    assert packed == {f"layers.{layer}.feed_forward.w2.weight" for layer in (0, 1)}


@pytest.mark.parametrize(
    "scheme", [EIGHT_AND_FOUR, pytest.param("int4_weight_only", marks=pytest.mark.slow)]
)
def test_a_model_trained_for_it_computes_in_training_what_its_export_does(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    resolved = run("tuned", QAT % scheme, "training.steps=4")
    assert main([str(resolved)]) == 0
    losses = [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    step = str(resolved.parent / "checkpoint" / "step-4")
    for out, asked in (("whole", {}), ("small", {"quantize": scheme})):
        assert (
            job(
                monkeypatch,
                do="export",
                checkpoint=step,
                out=str(tmp_path / out),
                format="torch",
                **asked,
            )
            == 0
        )
    recipe = load_resolved(resolved)
    trained, exported = (build_meta_model(recipe) for _ in range(2))
    (qat,) = recipe.converters
    qat.load_builder()(qat, model=trained, shards=1)
    for model, file in ((trained, "whole"), (exported, "small")):
        model.load_state_dict(torch.load(tmp_path / file, weights_only=True), assign=True)
        model.rope_table = model.build_rope_cache(torch.device("cpu"))
        model.eval()
    with torch.no_grad():
        assert torch.allclose(trained(ids()), exported(ids()), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_is_said(
    run: Run, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tuned, adapted = (
        run("tuned", QAT % EIGHT_AND_FOUR, "training.steps=4"),
        run("adapted", "converters=[lora]", "training.steps=4"),
    )
    for each in (tuned, adapted):
        assert main([str(each)]) == 0
    said = {
        "the run was trained for int8_dynamic_activation_int4_weight, not for int8_weight_only": (
            tuned,
            "int8_weight_only",
            None,
        ),
        "the run was trained for groups of 32, not of 64": (tuned, EIGHT_AND_FOUR, 64),
        "adapters cannot be quantized": (adapted, "int8_weight_only", None),
        "int4_weight_only cannot quantize any linear module of the model": (
            plain.parent.parent / "resolved.yaml",
            "int4_weight_only",
            256,
        ),
    }
    for words, (resolved, scheme, size) in said.items():
        last = max((resolved.parent / "checkpoint").glob("step-*"))
        asked = {
            "checkpoint": str(last),
            "out": str(tmp_path / "out"),
            "format": "torch",
            "quantize": scheme,
            "group_size": size,
        }
        assert job(monkeypatch, do="export", **asked) == 2
        assert words in capsys.readouterr().err
