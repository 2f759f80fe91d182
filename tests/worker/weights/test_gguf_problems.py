"""What cannot be written as GGUF, and the Modelfile, without the package gguf."""

from pathlib import Path
from typing import Any

import pytest

from titanrun.cli import checkpoint as command
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.spec.named_templates import get_template_path
from titanrun.config.problems import ProblemsFound
from titanrun.worker.weights.gguf_export import get_family
from titanrun.worker.weights.gguf_tokenizer import find_pre_tokenizer, list_tokens
from titanrun.worker.weights.ollama_modelfile import (
    GO_TEMPLATES,
    build_modelfile,
    find_go_template,
)

BEGIN = "<s>"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"model": {"type": "Unigram"}}, "Unigram is not byte-level BPE"),
        ({"model": {"type": "BPE", "byte_fallback": True}}, "BPE is not byte-level BPE"),
        ({"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Whitespace"}}, "ByteLevel"),
        (
            {
                "model": {"type": "BPE"},
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "pattern": {"Regex": "[a-z]+"}},
                        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                    ],
                },
            },
            'it splits texts by ["[a-z]+"]',
        ),
    ],
)
def test_a_tokenizer_without_a_name_in_the_format_is_refused(
    data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProblemsFound) as found:
        find_pre_tokenizer(data)
    (problem,) = found.value.problems
    assert message in problem.message
    assert "llama.cpp" in (problem.hint or "")


def test_a_token_without_a_row_is_refused() -> None:
    data = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 4, "content": "<x>"}]}
    with pytest.raises(ProblemsFound, match="the tokenizer has token 4, but the embedding 4 rows"):
        list_tokens(data, 4)
    assert list_tokens(data, 6) == (
        ["a", "b", "[PAD2]", "[PAD3]", "<x>", "[PAD5]"],
        [1, 1, 5, 5, 4, 5],
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama4_text"}, "model type llama4_text is not written as GGUF"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}, "RoPE scaling yarn"),
        (
            {
                "model_type": "deepseek_v3",
                "num_hidden_layers": 2,
                "first_k_dense_replace": 1,
                "n_shared_experts": 1,
                "q_lora_rank": None,
                "rms_norm_eps": 1e-5,
            },
            "other values of: rms_norm_eps, q_lora_rank: null",
        ),
        (
            {"model_type": "gpt_oss", "num_hidden_layers": 2, "swiglu_limit": 5.0},
            "other values of: swiglu_limit",
        ),
        (
            {
                "model_type": "gpt_oss",
                "num_hidden_layers": 2,
                "layer_types": ["full_attention", "full_attention"],
            },
            "other values of: sliding windows in other layers",
        ),
    ],
)
def test_another_family_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsFound, match=message):
        get_family(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "hf", "--ollama"], "--ollama is for --format gguf"),
        (["--format", "hf", "--dtype", "q8_0"], "--dtype q8_0 is for --format gguf"),
        (["--format", "gguf", "--quantize", "int8_weight_only"], "not for gguf"),
    ],
)
def test_options_of_another_format_are_refused(
    words: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ProblemsFound, match=message):
        command.run(["export", str(tmp_path), str(tmp_path / "out"), *words])


def fill(template: str, values: dict[str, str]) -> str:
    """Return what Go's template engine writes up to the reply."""
    written, rest, is_kept = "", template, [True]
    while rest:
        text, found, rest = rest.partition("{{ ")
        written += text * all(is_kept)
        if not found:
            break
        action, _, rest = rest.partition(" }}")
        if action == ".Response":
            break
        if action.startswith("if "):
            is_kept.append(bool(values[action.removeprefix("if .")]))
        elif action == "end":
            is_kept.pop()
        else:
            written += values[action.removeprefix(".")] * all(is_kept)
    return written


@pytest.mark.parametrize("system", ["", "Be short."])
@pytest.mark.parametrize("name", GO_TEMPLATES)
def test_the_template_of_ollama_writes_what_ours_does(name: str, system: str) -> None:
    text = get_template_path(name).read_text(encoding="utf-8")
    told = [{"role": "system", "content": system}] if system else []
    ours = ChatTemplate(text, {"bos_token": BEGIN, "eos_token": "</s>"}, source=name)
    prompt = ours.render([*told, {"role": "user", "content": "Hello?"}], add_generation_prompt=True)
    theirs = fill(GO_TEMPLATES[name], {"System": system, "Prompt": "Hello?"})
    assert theirs == prompt.removeprefix(BEGIN)


def test_the_modelfile_of_another_template_has_none() -> None:
    text = build_modelfile("a.gguf", "{{ messages }}", ["<|im_end|>"], 512)
    assert text == 'FROM ./a.gguf\nPARAMETER stop "<|im_end|>"\nPARAMETER num_ctx 512\n'
    known = build_modelfile(
        "a.gguf", get_template_path("chatml").read_text(encoding="utf-8"), [], 512
    )
    assert known.endswith('<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"""\n')


OTHER_CHATML = """{%- for turn in messages -%}
{{ '<|im_start|>' ~ turn.role ~ '\\n' ~ turn['content'] ~ '<|im_end|>' ~ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def test_a_template_that_writes_what_a_known_one_does_is_known() -> None:
    assert find_go_template(OTHER_CHATML) == GO_TEMPLATES["chatml"]
    assert find_go_template(OTHER_CHATML.replace("turn.role", "turn.role.upper()")) is None
    assert find_go_template("{{ raise_exception('no') }}") is None
