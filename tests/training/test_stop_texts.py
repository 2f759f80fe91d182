"""Generation stops at texts, and at special tokens."""

import pytest

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer, build_tiny_tokenizer
from titanrun.training.stop_texts import StopTexts


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return build_tiny_tokenizer(TinyTokenizerConfig())


def test_a_special_token_stops_by_its_id(tokenizer: HuggingFaceTokenizer) -> None:
    """Row A10 of the defect list: decoded text lacks special tokens, so none ever matched."""
    special = tokenizer._library.id_to_token(tokenizer.eos_id)
    said = tokenizer.encode("one two", add_bos=False, add_eos=False)
    stops = StopTexts(tokenizer, [special])
    assert not stops.is_reached(said) and stops.is_reached([*said, tokenizer.eos_id])
    assert stops.decode_before_stop([*said, tokenizer.eos_id]) == "one two"


def test_text_before_a_special_token_belongs_to_the_stop(tokenizer: HuggingFaceTokenizer) -> None:
    special = tokenizer._library.id_to_token(tokenizer.eos_id)
    stops = StopTexts(tokenizer, [f" two{special}", "never"])
    said = [*tokenizer.encode("one two", add_bos=False, add_eos=False), tokenizer.eos_id]
    other = [*tokenizer.encode("one three", add_bos=False, add_eos=False), tokenizer.eos_id]
    assert stops.is_reached(said) and stops.decode_before_stop(said) == "one"
    assert not stops.is_reached(other)


def test_a_text_stops_in_the_middle_of_a_token(tokenizer: HuggingFaceTokenizer) -> None:
    stops = StopTexts(tokenizer, ["wo"])
    said = tokenizer.encode("one two", add_bos=False, add_eos=False)
    assert stops.is_reached(said) and stops.decode_before_stop(said) == "one t"
