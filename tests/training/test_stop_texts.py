"""Generation stops at texts, and at special tokens."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from titanrun.components.tokenizers.chat_template import (
    ChatTemplate,
    load_chat_template,
    read_chat_template,
)
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig, TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import (
    HuggingFaceTokenizer,
    build_tiny_tokenizer,
    open_tokenizer,
)
from titanrun.components.tokenizers.spec.named_templates import TEMPLATE_TOKENS
from titanrun.training.stop_texts import StopTexts


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return build_tiny_tokenizer(TinyTokenizerConfig())


def test_a_special_token_stops_by_its_id(tokenizer: HuggingFaceTokenizer) -> None:
    """Row A10 of the defect list: decoded text lacks special tokens, so none ever matched."""
    special = tokenizer._library.id_to_token(tokenizer.eos_id)
    said = tokenizer.encode("one two", add_bos=False, add_eos=False)
    stops = StopTexts(tokenizer, [special], is_reply=False)
    assert not stops.is_reached(said) and stops.is_reached([*said, tokenizer.eos_id])
    assert stops.decode_before_stop([*said, tokenizer.eos_id]) == "one two"


def test_text_before_a_special_token_belongs_to_the_stop(tokenizer: HuggingFaceTokenizer) -> None:
    special = tokenizer._library.id_to_token(tokenizer.eos_id)
    stops = StopTexts(tokenizer, [f" two{special}", "never"], is_reply=False)
    said = [*tokenizer.encode("one two", add_bos=False, add_eos=False), tokenizer.eos_id]
    other = [*tokenizer.encode("one three", add_bos=False, add_eos=False), tokenizer.eos_id]
    assert stops.is_reached(said) and stops.decode_before_stop(said) == "one"
    assert not stops.is_reached(other)


def test_a_text_stops_in_the_middle_of_a_token(tokenizer: HuggingFaceTokenizer) -> None:
    stops = StopTexts(tokenizer, ["wo"], is_reply=False)
    said = tokenizer.encode("one two", add_bos=False, add_eos=False)
    assert stops.is_reached(said) and stops.decode_before_stop(said) == "one t"


def test_the_blank_of_the_template_before_a_reply_is_not_part_of_its_text(
    tokenizer: HuggingFaceTokenizer,
) -> None:
    template = load_chat_template(tokenizer)
    assert template.blank_before_replies == " "
    stops = StopTexts(tokenizer, [], is_reply=True, blank=template.blank_before_replies)
    said = tokenizer.encode(" one two", add_bos=False, add_eos=False)
    assert stops.decode_before_stop(said) == "one two"
    assert stops.decode_before_stop([]) == ""
    assert stops.decode_before_stop(tokenizer.encode(" ", add_bos=False, add_eos=False)) == ""
    # of a template without it, and of a continuation, each character counts
    assert StopTexts(tokenizer, [], is_reply=True).decode_before_stop(said) == " one two"
    prompted = StopTexts(tokenizer, [], is_reply=False, blank=" ")
    assert prompted.decode_before_stop(said) == " one two"


@pytest.mark.parametrize("name", ["alpaca", "chatml", "llama3"])
def test_published_templates_put_no_blank_before_a_reply(
    name: str,
) -> None:
    text = read_chat_template(name)
    template = ChatTemplate(text, {"bos_token": "", "eos_token": ""}, source=name)
    assert template.blank_before_replies == ""


def test_only_the_final_channel_of_a_reply_is_its_text(tmp_path: Path) -> None:
    folder = tmp_path / "assets"
    shutil.copytree(TinyTokenizerConfig().folder, folder)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_special_tokens(list(TEMPLATE_TOKENS["gpt_oss"]))
    library.save(str(folder / "tokenizer.json"))
    tokenizer = open_tokenizer(HuggingFaceTokenizerConfig(path=str(folder)))

    def read(text: str, *, is_reply: bool = True) -> str:
        ids = tokenizer.encode(text, add_bos=False, add_eos=False)
        return StopTexts(tokenizer, ["stop"], is_reply=is_reply).decode_before_stop(ids)

    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>one two"
    assert read(thought) == read(f"{thought}<|channel|>fi") == ""
    assert read(thought + final) == read(final) == read("one two") == "one two"
    assert read(f"{final} stop three") == "one two "
    assert read(final, is_reply=False) == "finalone two"
