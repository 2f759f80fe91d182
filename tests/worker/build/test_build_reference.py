"""A reference stored in the compute dtype computes what one in fp32 computes, bit for bit."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.parts import on_ranks
from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.engine import Engine
from titanrun.training.engine_outputs import find_averaging_optimizer
from titanrun.worker.build.build_engine import build_engine
from titanrun.worker.build.build_reference import build_frozen_reference

CPU = torch.device("cpu")
SMALL = "n_layers: 2, dim: 64, n_heads: 4, attention: {mask: causal}"
LLAMA3 = f"{{name: llama3, flavor: debugmodel, {SMALL}}}"
TIED = f"{{name: llama3, flavor: debugmodel, {SMALL}, tie_word_embeddings: true}}"
EXPERTS = (
    f"{{name: qwen3, flavor: debugmodel_moe, {SMALL}, n_kv_heads: 2, "
    "moe: {num_experts: 4, top_k: 2, hidden_dim: 96}}"
)
FP32_HEAD = ("converters=[fp32_lm_head]",)
FLOAT8 = ("converters=[{name: float8_linear, recipe_name: rowwise, emulate: true}]",)
GATHERED_FLOAT8 = (
    "converters=[{name: float8_linear, recipe_name: tensorwise, emulate: true, "
    "enable_fsdp_float8_all_gather: true}]",
)
ALONE: list[Any] = [
    pytest.param((f"model={LLAMA3}",), 2, id="llama3"),
    pytest.param((f"model={TIED}",), 2, id="tied"),
    pytest.param((f"model={EXPERTS}",), 2, id="experts"),
    pytest.param((f"model={LLAMA3}", *FP32_HEAD), 4, id="fp32_head"),
    pytest.param((f"model={LLAMA3}", *FLOAT8), 2, id="float8"),
]


def resolve(folder: Path, overrides: tuple[str, ...], ranks: int) -> Recipe:
    (folder / "recipe.yaml").write_text(
        "version: 1\nmodel: llama3\ntraining: {dataset: tiny, seq_len: 32, "
        "mixed_precision_param: bfloat16}\ncheckpoint: {enable: false}\n"
    )
    overrides = ("device=cpu", *overrides)
    return resolve_recipe(str(folder / "recipe.yaml"), overrides, environment={}, ranks=ranks).run


def batch() -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    return TokenBatch.from_sequences(torch.randint(2000, (2, 33), generator=generator))


def look(engine: Engine) -> dict[str, Any]:
    """What an engine computes, and how this rank stores its weights."""
    # before a pass, after which FSDP leaves some of them gathered
    parameters = dict(engine.model.named_parameters())
    found = {
        "output": parameters.get("output.weight", parameters["tok_embeddings.weight"]).itemsize,
        "others": {
            parameter.itemsize for name, parameter in parameters.items() if "output" not in name
        },
        "copies": engine.working_weights.num_bytes,
        "trained": [name for name, parameter in parameters.items() if parameter.requires_grad],
    }
    return {**found, "logprobs": engine.forward(batch())["logprobs"].detach()}


def build_both(folder: Path, overrides: tuple[str, ...], ranks: int) -> list[dict[str, Any]]:
    """A reference, and the model as the run trains it."""
    recipe = resolve(folder, overrides, ranks)
    dims = resolve_parallel_dims(recipe.parallelism, ranks)
    assert dims is not None
    meshes = None if ranks == 1 else ParallelMeshes(dims, CPU)
    build = partial(build_engine, device=CPU, meshes=meshes, document_id_fn=lambda given: given)
    reference = build_frozen_reference(recipe, get_default_rank_group(), build)
    return [look(reference), look(build(recipe))]


@pytest.mark.parametrize(("overrides", "output_bytes"), ALONE)
def test_a_reference_is_half_as_large_and_computes_the_same(
    overrides: tuple[str, ...], output_bytes: int, tmp_path: Path
) -> None:
    reference, trained = build_both(tmp_path, overrides, 1)
    assert torch.equal(reference["logprobs"], trained["logprobs"])
    assert reference["others"] == {2} and trained["others"] == {4}
    assert reference["output"] == output_bytes
    # the model computes with copies, its reference with what it stores
    assert reference["copies"] == 0 < trained["copies"]
    assert reference["trained"] == [] and trained["trained"] != []


def test_a_reference_of_a_class_of_transformers_draws_the_weights_of_the_model(
    tmp_path: Path,
) -> None:
    """Their rule draws in the dtype of the weights."""
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 2048,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    model = f"model={{name: transformers, path: {tmp_path}/model, max_seq_len: 64}}"
    reference, trained = build_both(tmp_path, (model,), 1)
    assert reference["others"] == {2} and trained["others"] == {4}
    assert torch.equal(reference["logprobs"], trained["logprobs"])


@pytest.mark.parametrize(
    ("overrides", "stored"),
    [
        pytest.param((), {2}, id="fsdp2"),
        pytest.param(("parallelism.fsdp_reshard_after_forward=never",), {2}, id="never"),
        pytest.param(("parallelism.tensor_parallel_degree=2",), {2}, id="tp2"),
        pytest.param(("training.enable_cpu_offload=true",), {2}, id="offload"),
        pytest.param(FP32_HEAD, {2}, id="fp32_head"),
        # rounded to float8 from fp32, by the reference as by the model
        pytest.param(GATHERED_FLOAT8, {4}, id="gathered_float8"),
    ],
)
def test_ranks_share_a_reference_of_half_the_size(
    overrides: tuple[str, ...], stored: set[int], tmp_path: Path
) -> None:
    overrides = (f"model={LLAMA3}", *overrides)
    for reference, trained in on_ranks(2, build_both, tmp_path / "ranks", tmp_path, overrides, 2):
        assert torch.equal(reference["logprobs"], trained["logprobs"])
        assert reference["others"] == stored and trained["others"] == {4}
        assert reference["output"] == (4 if overrides[-1:] == FP32_HEAD else min(stored))


def test_a_reference_keeps_no_averages_of_weights_that_never_change(tmp_path: Path) -> None:
    recipe = resolve(tmp_path, (f"model={LLAMA3}", "optimizer=schedule_free_adamw"), 1)
    build = partial(build_engine, device=CPU, meshes=None, document_id_fn=lambda given: given)
    reference = build_frozen_reference(recipe, get_default_rank_group(), build)
    reference.forward(batch())
    assert reference.optimizer.state_dict()["state"] == {}
    assert find_averaging_optimizer(reference.optimizer) is None
