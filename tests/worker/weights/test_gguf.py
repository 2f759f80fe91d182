"""GGUF files, as llama.cpp (xllamacpp) and the package gguf read them."""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from titanrun.cli import checkpoint as command
from titanrun.components.tokenizers.spec.named_templates import get_template_path
from titanrun.worker.rank_main import main
from titanrun.worker.weights.gguf_export import write_gguf
from titanrun.worker.weights.gguf_tokenizer import DEEPSEEK as DEEPSEEK_PATTERNS
from titanrun.worker.weights.gguf_tokenizer import PRE_TOKENIZERS

pytestmark = pytest.mark.gguf
TINY = Path(__file__).parents[3] / "titanrun" / "assets" / "tiny"
IDS = [5, 17, 300, 999, 1500, 42]
NUM_NEW = 16
SIZES: dict[str, Any] = {
    "vocab_size": 2064,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
GPT_OSS = {
    # with 16 the reply has a part of a character, which llama.cpp does not list
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "attention_bias": True,
    "rope_scaling": {"rope_type": "default"},
}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    # with 8 the reply has a part of a character, which llama.cpp does not list
    "qk_rope_head_dim": 32,
    "head_dim": 32,
    "v_head_dim": 20,
    "num_hidden_layers": 3,
}
DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "llama": (LlamaConfig, "llama", {}),
    "llama3.1": (LlamaConfig, "llama", {"rope_scaling": LLAMA3_ROPE}),
    "linear": (LlamaConfig, "llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "tied": (LlamaConfig, "llama", {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, "qwen3", {}),
    "gpt_oss": (GptOssConfig, "gpt_oss", GPT_OSS),
    "gpt_oss_yarn": (GptOssConfig, "gpt_oss", {**GPT_OSS, "rope_scaling": YARN, "head_dim": 64}),
    "qwen3_moe": (Qwen3MoeConfig, "qwen3_moe", EXPERTS),
    "deepseek_v3": (DeepseekV3Config, "deepseek_v3", DEEPSEEK),
    "deepseek_v3_yarn": (
        DeepseekV3Config,
        "deepseek_v3",
        {**DEEPSEEK, "rope_scaling": DEEPSEEK_YARN, "qk_rope_head_dim": 64, "head_dim": 64},
    ),
}


def build(kind: str, folder: Path, **options: Any) -> tuple[PreTrainedModel, Path]:
    """Return a random model of transformers and the file that holds it."""
    config_class, model_type, more = MODELS[kind]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(**(SIZES | more))).float().eval()
    for name, values in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            values.normal_()
    # experts are separate on disk
    model.save_pretrained(folder / "hf")
    from safetensors.torch import load_file

    weights = load_file(folder / "hf" / "model.safetensors")
    file = folder / "model.gguf"
    options = {
        "dtype": "float32",
        "tokenizer": TINY,
        "template": None,
        "end_ids": (),
        "name": "random",
    } | options
    write_gguf(file, weights, SIZES | more | {"model_type": model_type}, **options)
    return model, file


@contextmanager
def serving(file: Path) -> Iterator[Any]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.warmup, params.n_gpu_layers = 256, False, 0
    yield xllamacpp.Server(params)


def post(server: Any, route: str, data: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        server.listening_address + route,
        json.dumps(data).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def complete(server: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """Return the greedy ids of llama.cpp and their log-probabilities."""
    done = server.handle_completions(
        {
            "prompt": [ids],
            "max_tokens": NUM_NEW,
            "temperature": 0.0,
            "ignore_eos": True,
            "n_probs": 1,
        }
    )
    tokens = done["choices"][0]["logprobs"]["content"]
    return [token["id"] for token in tokens], [token["logprob"] for token in tokens]


@torch.no_grad()
def complete_in_transformers(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    whole = model.generate(
        torch.tensor([ids]),
        max_new_tokens=NUM_NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0]
    logprobs = model(whole[None]).logits[0].log_softmax(-1)
    new = whole[len(ids) :]
    return new.tolist(), logprobs[len(ids) - 1 : -1].gather(1, new[:, None])[:, 0].tolist()


@pytest.mark.parametrize("kind", MODELS)
def test_llama_cpp_continues_as_transformers_does(kind: str, tmp_path: Path) -> None:
    model, file = build(kind, tmp_path)
    expected, logprobs = complete_in_transformers(model, IDS)
    with serving(file) as server:
        ids, found = complete(server, IDS)
    assert ids == expected
    # llama.cpp keeps keys and values in fp16
    # and rounds the ends of YaRN's ramp to whole pairs, which gpt-oss does not
    assert found == pytest.approx(logprobs, abs=5e-2 if kind == "gpt_oss_yarn" else 2e-2)


@pytest.mark.parametrize(
    ("dtype", "matrix"), [("float16", "F16"), ("bfloat16", "BF16"), ("q8_0", "Q8_0")]
)
def test_matrices_have_the_dtype_and_vectors_stay_in_fp32(
    dtype: str, matrix: str, tmp_path: Path
) -> None:
    import gguf

    model, file = build("llama", tmp_path, dtype=dtype)
    reader = gguf.GGUFReader(file)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.0.attn_q.weight"] == kinds["output.weight"] == matrix
    assert {kind for name, kind in kinds.items() if "norm" in name} == {"F32"}
    values = next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_up.weight")
    restored = torch.from_numpy(gguf.quants.dequantize(values.data, values.tensor_type).copy())
    weight = model.get_parameter("model.layers.1.mlp.up_proj.weight").detach()
    torch.testing.assert_close(restored, weight, atol=0.01, rtol=0.01)


def test_transformers_reads_the_same_logits_from_the_file(tmp_path: Path) -> None:
    model, file = build("llama", tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name)
    with torch.no_grad():
        assert torch.equal(read(torch.tensor([IDS])).logits, model(torch.tensor([IDS])).logits)


def train_tokenizer(patterns: tuple[str, ...], folder: Path) -> Path:
    """Train a byte-level tokenizer that splits texts by patterns; without any: as GPT-2."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=PRE_TOKENIZERS.get(patterns) == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    tokenizer.pre_tokenizer = byte_level
    if patterns:
        from tokenizers import Regex

        splits = [pre_tokenizers.Split(Regex(one), behavior="isolated") for one in patterns]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


PAGES = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))
TEXTS = (
    [
        text
        for page in PAGES[:12]
        for text in re.split(r"\n\n+", page.read_text(encoding="utf-8"))[:16]
    ]
    + ["漢字かなカナ abc 한글 ١٢٣", "a+b=-c _x (y)", "東京123都abc\uff01\uff1f\nx"]
    + ["Grüße, 東京! don't WE'LL 12345 6  \n\n\t x", "a\r\nb   c", "  ", "éa I'm 1,234.5", "\n\n\n"]
)


LINE_ENDS = tuple(one.replace(r"\r", "\r").replace(r"\n", "\n") for one in DEEPSEEK_PATTERNS)


@pytest.mark.parametrize(
    "patterns",
    [(), *PRE_TOKENIZERS, LINE_ENDS],
    ids=["gpt-2", *PRE_TOKENIZERS.values(), "line-ends"],
)
def test_texts_encode_to_the_same_ids(patterns: tuple[str, ...], tmp_path: Path) -> None:
    folder = train_tokenizer(patterns, tmp_path / "tokenizer")
    _, file = build("llama", tmp_path, tokenizer=folder)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(TEXTS) >= 150
    with serving(file) as server:
        for text in TEXTS:
            answer = post(server, "/tokenize", {"content": text, "add_special": False})
            assert answer["tokens"] == library.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen3_instruct"])
def test_llama_cpp_writes_the_prompt_of_the_template(name: str, tmp_path: Path) -> None:
    from titanrun.components.tokenizers.chat_template import ChatTemplate

    text = get_template_path(name).read_text(encoding="utf-8")
    _, file = build("llama", tmp_path, template=text)
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2 + 2?"},
    ]
    begin = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    ours = ChatTemplate(text, begin, source=name).render(messages, add_generation_prompt=True)
    with serving(file) as server:
        theirs = post(server, "/apply-template", {"messages": messages})["prompt"]
        answer = server.handle_chat_completions({"messages": messages, "max_tokens": 1})
    # llama.cpp adds the begin token when it encodes
    assert theirs == ours.removeprefix("<|begin_of_text|>")
    library = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    assert answer["usage"]["prompt_tokens"] == len(library.encode(ours).ids)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapters"])
def test_a_run_is_exported_with_its_template_and_a_modelfile(
    lora: bool, run: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import gguf

    more = ("converters=[{name: lora, rank: 2}]",) if lora else ()
    resolved = run(
        "chatty",
        "model.vocab_size=2048",
        "training.seq_len=64",
        "tokenizer={name: tiny}",
        "training.dataset={name: tiny_chat, packing: best_fit}",
        "model.attention.mask=block_causal",
        *more,
    )
    assert main([str(resolved)]) == 0
    out = tmp_path / "chatty.gguf"
    words = ["export", str(resolved.parent), str(out), "--format", "gguf", "--ollama"]
    assert command.run(words) == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[-3:] == [
        str(out),
        str(tmp_path / "Modelfile"),
        f"next: ollama create chatty -f {tmp_path / 'Modelfile'}",
    ]
    fields = gguf.GGUFReader(out).fields
    template = fields["tokenizer.chat_template"].contents()
    assert "generation" not in re.sub("add_generation_prompt", "", template)
    modelfile = (tmp_path / "Modelfile").read_text()
    assert modelfile.startswith('FROM ./chatty.gguf\nPARAMETER stop "<|end_of_text|>"\n')
    with serving(out) as server:
        messages = [{"role": "user", "content": "Say: moon"}]
        assert server.handle_chat_completions({"messages": messages, "max_tokens": 4})["usage"]
