"""A run whose attention does not cross documents, with each back end; what tells documents apart is
known before it starts."""

from itertools import product

import pytest
import torch

from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.attention import BACKENDS
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.worker.build.build_data import build_document_id_fn, build_tokenizer
from titanrun.worker.build.build_model import build_model, check_attention_dtype

TINY = (
    "tokenizer={name: tiny}",
    "training.dataset={name: tiny}",
    "model.vocab_size=2048",
    "training.steps=3",
    "training.seq_len=128",
)
DOCUMENTS = ("model.attention.mask=block_causal",)


def losses(metrics, *overrides):
    return [line["loss"] for line in metrics(*TINY, *overrides)]


def test_attention_that_does_not_cross_documents_trains_alike_with_every_back_end(metrics):
    across = losses(metrics)
    (within, *others) = (
        losses(metrics, *DOCUMENTS, f"model.attention.backend={backend}") for backend in BACKENDS
    )
    assert within != across
    assert others == [within, within]


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        *product(("llama3", "llama4", "qwen3", "deepseek_v3", "decoder"), BACKENDS),
        ("gpt_oss", "sdpa"),
        ("gpt_oss", "flex"),
    ],
)
def test_the_model_has_the_attention_that_the_recipe_names(family, backend, tmp_path):
    recipe = recipe_of(
        tmp_path, family, f"model.attention.backend={backend}", "model.attention.mask=block_causal"
    )
    model = build_model(recipe, get_precision("float32", "float32"))
    for layer in model.layers.children():
        assert type(layer.attention.backend) is BACKENDS[backend]
        assert layer.attention.backend.mask.separates_documents
    causal = recipe_of(tmp_path, family, "model.attention.mask=causal")
    assert (
        not build_model(causal, get_precision("float32", "float32"))
        .layers["0"]
        .attention.backend.mask.separates_documents
    )


def test_end_tokens_tell_documents_apart_where_the_data_has_no_positions(tmp_path):
    recipe = recipe_of(tmp_path, "llama3", "model.attention.mask=block_causal")
    assert recipe.model.attention.documents == "eos"
    tokenizer = build_tokenizer(recipe)
    batch = TokenBatch.from_sequences(torch.tensor([[5, tokenizer.eos_id, 6, 7]]))
    assert build_document_id_fn(recipe, tokenizer)(batch).document_ids.tolist() == [[0, 0, 1]]
    causal = recipe_of(tmp_path, "llama3")
    assert causal.model.attention.documents is None
    assert build_document_id_fn(causal, tokenizer)(batch).document_ids is None


@pytest.mark.parametrize(
    "family", ["llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss", "decoder"]
)
@pytest.mark.parametrize("source", ["positions", "null"])
def test_documents_that_nothing_tells_apart_are_refused(source, family, tmp_path):
    with pytest.raises(ProblemsFound) as found:
        recipe_of(
            tmp_path,
            family,
            "model.attention.mask=block_causal",
            f"model.attention.documents={source}",
        )
    assert [(problem.rule, problem.path) for problem in found.value.problems] == [
        ("one-source-of-documents", ("model", "attention", "documents"))
    ]


def test_varlen_attention_on_an_accelerator_computes_in_16_bits(tmp_path):
    recipe = recipe_of(tmp_path, "llama3", "model.attention.backend=varlen")
    accelerator = torch.device("cuda")
    check_attention_dtype(recipe, torch.device("cpu"), get_precision("float32", "float32"))
    check_attention_dtype(recipe, accelerator, get_precision("float32", "bfloat16"))
    with pytest.raises(ProblemsFound) as found:
        check_attention_dtype(recipe, accelerator, get_precision("float32", "float32"))
    assert found.value.problems[0].path == ("model", "attention", "backend")


def recipe_of(folder, family, *overrides):
    """The resolved debug recipe of a family, in two layers."""
    written, resolved = folder / "recipe.yaml", folder / "resolved.yaml"
    written.write_text(
        f"version: 1\nmodel: {{name: {family}, flavor: debugmodel, n_layers: 2}}\ntraining: "
        f"{{dataset: tiny}}\n"
    )
    resolved.write_text(resolve_recipe(str(written), list(overrides), environment={}).text)
    return load_resolved(resolved)
