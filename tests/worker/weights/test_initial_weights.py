import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import load_special_token_ids
from titanrun.distributed.rank_env import RankInfo
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.rank_main import main
from titanrun.worker.weights.huggingface_export import (
    build_config_json,
    collect_huggingface_files,
)
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
IN_HF = ("checkpoint.initial_load_in_hf=true",)


def first_loss(resolved: Path) -> float:
    return read_metrics(resolved.parent / "metrics.jsonl")[0]["loss"]


def logits(resolved: Path, tokens: torch.Tensor) -> torch.Tensor:
    """What the run's model, as it would start or go on, makes of tokens."""
    with (
        build_train_loop(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=SignalRequests()
        ) as trainer,
        torch.no_grad(),
    ):
        return trainer.engine.model(tokens)


RANDOM_START = "starting from random weights"


@pytest.mark.parametrize("where", ["checkpoint/step-10", "checkpoint", "."])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_starts_from_the_weights_of_another(run: Run, where: str, dtype: str) -> None:
    first = run("first")
    main([str(first)])
    tokens = torch.arange(12).reshape(2, 6)
    second = run(
        "second",
        f"checkpoint.initial_load_path={first.parent / where}",
        f"training.dtype={dtype}",
        "debug.seed=5",
    )
    expected = logits(first, tokens)
    tolerance = 0.0 if dtype == "float32" else 0.1
    torch.testing.assert_close(
        logits(second, tokens).float(), expected, rtol=tolerance, atol=tolerance
    )


def test_weights_are_loaded_once_and_not_again_on_resume(run: Run) -> None:
    first = run("first")
    main([str(first)])
    load = f"checkpoint.initial_load_path={first.parent}"
    second = run("second", load)
    assert main([str(second)]) == 0
    tokens = torch.arange(12).reshape(2, 6)
    trained = logits(second, tokens)
    assert not torch.equal(trained, logits(first, tokens))
    log = (second.parent / "logs" / "rank-0.log").read_text()
    assert "loaded initial weights" in log and RANDOM_START not in log


def test_random_weights_are_named_once_and_not_on_resume(run: Run) -> None:
    resolved = run("run")
    for _ in range(2):
        assert main([str(resolved)]) == 0
    assert (resolved.parent / "logs" / "rank-0.log").read_text().count(RANDOM_START) == 1


def test_the_export_opens_in_transformers_with_the_same_logits(run: Run) -> None:
    resolved = run("run", "checkpoint.last_save_in_hf=true")
    assert main([str(resolved)]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(resolved.parent / "hf")
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(logits(resolved, tokens), expected, rtol=1e-5, atol=1e-5)


def test_a_run_starts_from_its_own_export(run: Run) -> None:
    first = run("first", "checkpoint.last_save_in_hf=true")
    main([str(first)])
    second = run(
        "second",
        "checkpoint.initial_load_in_hf=true",
        f"checkpoint.initial_load_path={first.parent / 'hf'}",
    )
    tokens = torch.arange(24).reshape(2, 12)
    assert torch.equal(logits(first, tokens), logits(second, tokens))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_export_has_the_dtype_asked_for(run: Run, dtype: str) -> None:
    resolved = run(
        "run",
        "checkpoint.last_save_in_hf=true",
        f"checkpoint.export_dtype={dtype}",
        "training.steps=2",
    )
    assert main([str(resolved)]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(resolved.parent / "hf")
    assert {str(parameter.dtype) for parameter in theirs.parameters()} == {f"torch.{dtype}"}


def test_a_lost_export_is_written_again_and_more_steps_renew_it(run: Run) -> None:
    export = "checkpoint.last_save_in_hf=true"
    resolved = run("run", export)
    main([str(resolved)])
    weights = resolved.parent / "hf" / "model.safetensors"
    first, written = weights.read_bytes(), weights.stat().st_mtime_ns
    main([str(resolved)])
    assert weights.stat().st_mtime_ns == written
    (resolved.parent / "hf").rename(resolved.parent / "moved")
    main([str(resolved)])
    assert weights.read_bytes() == first
    main([str(run("run", export, "training.steps=12"))])
    assert weights.read_bytes() != first


def test_an_export_of_an_earlier_end_is_renewed_by_a_start_that_trains_nothing(run: Run) -> None:
    export = "checkpoint.last_save_in_hf=true"
    main([str(run("run", export))])
    folder = run("run", export).parent / "hf"
    old = folder.rename(folder.with_name("old"))
    longer = run("run", export, "training.steps=12")
    main([str(longer)])
    expected = (folder / "model.safetensors").read_bytes()
    # as a kill between the last save and the export leaves it
    shutil.rmtree(folder)
    old.rename(folder)
    assert main([str(longer)]) == 0
    assert (folder / "model.safetensors").read_bytes() == expected


def test_an_export_says_where_a_text_ends(tmp_path: Path) -> None:
    model = debug_model()
    tokenizer = TinyTokenizerConfig()
    files, texts = collect_huggingface_files(tokenizer, model)
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    for file in files:
        shutil.copy(file, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    generation = GenerationConfig.from_pretrained(tmp_path)
    assert (generation.bos_token_id, generation.eos_token_id) == (
        theirs.bos_token_id,
        theirs.eos_token_id,
    )
    assert theirs.eos_token_id is not None


def test_an_export_keeps_the_generation_config_of_its_assets(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    model = debug_model(f"model.hf_assets_path={tmp_path}")
    assert collect_huggingface_files(None, model) == ([tmp_path / "generation_config.json"], {})


def test_generation_stops_where_the_original_config_ends_a_text(tmp_path: Path) -> None:
    """The oracle is transformers, which without generation_config.json reads config.json."""

    def generate() -> list[int]:
        config = build_config_json(model, "float32", TinyTokenizerConfig())
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "config.json").write_text(json.dumps(config))
        torch.manual_seed(0)
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "out"))
        prompt = torch.tensor([[5, 6, 7]])
        found = theirs.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
        return found[0, 3:].tolist()

    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2000}')
    model = debug_model(f"model.hf_assets_path={tmp_path}", "model.n_layers=1")
    free = generate()
    assert len(free) == 4
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [2000, free[0]]}))
    assert generate() == free[:1]


def test_a_model_without_an_original_ends_texts_as_its_tokenizer_does() -> None:
    config = build_config_json(debug_model(), "float32", TinyTokenizerConfig())
    ids = load_special_token_ids(TinyTokenizerConfig().folder)
    assert (config["bos_token_id"], config["eos_token_id"]) == (ids["bos_token"], ids["eos_token"])


def debug_model(*overrides: str) -> ModelConfig:
    recipe = Path(__file__).parents[3] / "recipes" / "llama3_debug.yaml"
    return resolve_recipe(str(recipe), overrides, environment={}).run.model


def test_a_run_starts_from_a_folder_in_fp8_blocks(run: Run) -> None:
    """The oracle is transformers' own expansion of the same file."""
    first = run("first", "checkpoint.last_save_in_hf=true", "training.steps=2")
    assert main([str(first)]) == 0
    packed = first.parent / "packed"
    shutil.copytree(first.parent / "hf", packed)
    weights = safetensors.torch.load_file(packed / "model.safetensors")
    plain = dict(weights)
    for name in [
        name for name, tensor in weights.items() if ".layers." in name and tensor.dim() == 2
    ]:
        rows, columns = weights[name].shape
        scale = torch.rand(rows // 16, columns // 16) + 0.5
        values = (weights[name] / scale.repeat_interleave(16, 0).repeat_interleave(16, 1)).to(
            torch.float8_e4m3fn
        )
        weights |= {name: values, f"{name}_scale_inv": scale}
        plain[name] = Fp8Dequantize(None)._dequantize_one(values, scale, output_dtype=torch.float32)
    safetensors.torch.save_file(weights, packed / "model.safetensors", metadata={"format": "pt"})
    safetensors.torch.save_file(
        plain, first.parent / "hf" / "model.safetensors", metadata={"format": "pt"}
    )
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": [16, 16],
        "fmt": "e4m3",
    }
    (packed / "config.json").write_text(json.dumps(config))
    second = run(
        "second", "checkpoint.initial_load_in_hf=true", f"checkpoint.initial_load_path={packed}"
    )
    assert main([str(second)]) == 4
    third = run(
        "third",
        *IN_HF,
        f"checkpoint.initial_load_path={packed}",
        "checkpoint.initial_load_in_hf_quantized=true",
    )
    fourth = run("fourth", *IN_HF, f"checkpoint.initial_load_path={first.parent / 'hf'}")
    tokens = torch.arange(24).reshape(2, 12)
    assert torch.equal(logits(third, tokens), logits(fourth, tokens))
