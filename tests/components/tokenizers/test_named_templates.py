"""The chat templates that ship with titanrun write what others' templates of that name write."""

import json
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.config import (
    CharactersTokenizerConfig,
    HuggingFaceTokenizerConfig,
    TinyTokenizerConfig,
    TokenizerConfig,
)
from titanrun.components.tokenizers.end_of_turn import find_end_ids, find_turn_end
from titanrun.components.tokenizers.huggingface import open_tokenizer
from titanrun.components.tokenizers.reply_spans import render_with_replies
from titanrun.components.tokenizers.spec.named_templates import (
    TEMPLATE_TOKENS,
    get_template_path,
    suggest_template_names,
)
from titanrun.config.problems import ProblemsFound

TRL = {
    **{name: name for name in ("llama3", "llama3_1", "qwen2_5", "gemma3", "phi3")},
    "gpt_oss": "gptoss",
    "qwen3": "qwen3_training",
    "qwen3_instruct": "qwen3_instruct_2507",
}
AXOLOTL = {
    "alpaca": "alpaca",
    "chatml": "chatml",
    "deepseek_v3": "deepseek_v3",
    "mistral": "mistral_v7_tekken",
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}
]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def talk(turns: int, *, has_system: bool) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": " Be brief. "}] if has_system else []
    for number in range(turns):
        messages.append({"role": "user", "content": f" question {number}\n"})
        messages.append({"role": "assistant", "content": f" reply {number} \n"})
    return messages


def list_talks(name: str) -> list[tuple[list[dict[str, Any]], Any]]:
    """Return conversations with the tools of each."""
    talks: list[tuple[list[dict[str, Any]], Any]] = []
    for has_system in (True, False):
        if name == "mistral" and not has_system:
            continue  # the reference then writes a system text with the date of today
        for turns in range(1, 6):
            whole = talk(turns, has_system=has_system)
            talks += [(whole, None), (whole[:-1], None)]
        if name == "gpt_oss":
            thoughtful = talk(2, has_system=has_system)
            thoughtful[-1]["thinking"] = thoughtful[-3]["thinking"] = "Let me see"
            talks.append((thoughtful, None))
        if name.startswith("qwen"):
            asked = talk(1, has_system=has_system)[:-1]
            for content in ("", "Let me see"):
                called = {"role": "assistant", "content": content, "tool_calls": [CALL, CALL]}
                results = [{"role": "tool", "content": number} for number in "12"]
                last = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n3"}
                talks.append(([*asked, called, *results, last], TOOLS))
    return talks


def render(text: str, messages: list[dict[str, Any]], tools: Any, **options: Any) -> str:
    """Return the text as transformers renders it."""
    rendered, _ = render_jinja_template(
        [messages], chat_template=text, tools=tools, bos_token="<s>", eos_token="</s>", **options
    )
    return str(rendered[0])


@pytest.mark.oracles
@pytest.mark.parametrize("name", TEMPLATE_TOKENS)
def test_a_template_writes_what_the_reference_writes(name: str) -> None:
    package = "trl" if name in TRL else "axolotl"
    stem = (TRL | AXOLOTL)[name]
    reference = next(
        Path(str(distribution(package).locate_file(file))).read_text(encoding="utf-8")
        for file in distribution(package).files or ()
        if file.match(f"*/{'chat_templates' if name in TRL else 'templates'}/{stem}.jinja")
    )
    ours = get_template_path(name).read_text(encoding="utf-8")
    for messages, tools in list_talks(name):
        options: dict[str, Any]
        for options in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False},
            {"add_generation_prompt": True, "enable_thinking": False},
        ):
            expected = render(reference, messages, tools, **options)
            # only the reference knows the date of today
            options["date_string"] = render("{{ strftime_now('%Y-%m-%d') }}", [], None)
            assert render(ours, messages, tools, **options) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped tokenizer with the tokens of all named templates, without a template."""
    folder = tmp_path_factory.mktemp("tokenizer") / "assets"
    shutil.copytree(TinyTokenizerConfig().folder, folder)
    (folder / "chat_template.jinja").unlink()
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = dict.fromkeys(token for needed in TEMPLATE_TOKENS.values() for token in needed)
    library.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    library.save(str(folder / "tokenizer.json"))
    return folder


def test_gpt_oss_ends_only_the_last_reply_with_the_token_that_stops(folder: Path) -> None:
    config = HuggingFaceTokenizerConfig(path=str(folder), chat_template="gpt_oss")
    messages = talk(2, has_system=True)
    messages[-1]["thinking"] = "hm"
    text, spans = render_with_replies(load_chat_template(config), messages, "a talk")
    assert [text[slice(*span)] for span in spans] == [
        "<|channel|>final<|message|> reply 0 \n<|end|>",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        "<|channel|>final<|message|> reply 1 \n<|return|>",
    ]
    with pytest.raises(ProblemsFound, match=r"without <.channel.>"):
        load_chat_template(config).render([{"role": "assistant", "content": "<|channel|>"}])
    with pytest.raises(ProblemsFound, match="no tools"):
        load_chat_template(config).with_tools(TOOLS).render(messages)


@pytest.mark.parametrize("name", TEMPLATE_TOKENS)
def test_a_template_trains_the_end_of_each_turn(folder: Path, name: str) -> None:
    """transformers judges which tokens are learned; each reply ends with a special token."""
    config = HuggingFaceTokenizerConfig(path=str(folder), chat_template=name)
    turns = 1 if name == "gpt_oss" else 2
    template, messages = load_chat_template(config), talk(turns, has_system=True)
    oracle: Any = AutoTokenizer.from_pretrained(str(folder))
    found = oracle.apply_chat_template(
        messages,
        chat_template=get_template_path(name).read_text(encoding="utf-8"),
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    learned = [
        token
        for token, mask in zip(found["input_ids"], found["assistant_masks"], strict=True)
        if mask
    ]
    text, spans = render_with_replies(template, messages, "a talk")
    ours = [oracle.encode(text[slice(*span)], add_special_tokens=False) for span in spans]
    assert [token for part in ours for token in part] == learned and len(spans) == turns
    ends = {part[-1] for part in ours}
    assert len(ends) == 1 and ends <= set(oracle.added_tokens_decoder)
    end = find_turn_end(template, [oracle.decode(list(ends))])
    assert end is not None and end.is_marked


def test_the_tokens_of_a_tokenizer_suggest_templates(folder: Path) -> None:
    known = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    assert suggest_template_names({token["content"] for token in known})[0] == "qwen3"
    assert suggest_template_names(("<|im_start|>", "<|im_end|>")) == [
        *("chatml", "alpaca", "qwen2_5", "qwen3_instruct")
    ]
    assert suggest_template_names(("<|eot_id|>", "<|start_header_id|>"))[0] == "llama3"
    assert suggest_template_names(TEMPLATE_TOKENS["gpt_oss"])[0] == "gpt_oss"
    assert suggest_template_names(()) == ["alpaca"]


@pytest.mark.parametrize("name", ["tiny", "characters", "huggingface"])
def test_every_tokenizer_takes_a_template_and_stop_tokens(name: str, folder: Path) -> None:
    choices: dict[str, type[TokenizerConfig]] = {
        "tiny": TinyTokenizerConfig,
        "characters": CharactersTokenizerConfig,
        "huggingface": HuggingFaceTokenizerConfig,
    }
    where = {"path": str(folder)} if name == "huggingface" else {}
    config = choices[name](chat_template="alpaca", stop_tokens=("a", "b"), **where)
    tokenizer = open_tokenizer(config)
    template = load_chat_template(tokenizer)
    assert template.render([{"role": "user", "content": "x"}]).endswith("### Instruction:\nx")
    stops = {tokenizer.encode(text, add_bos=False, add_eos=False)[0] for text in "ab"}
    assert find_end_ids(template, tokenizer) >= stops
