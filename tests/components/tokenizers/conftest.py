"""Tokenizer folders as Hugging Face tools write them, small enough to be trained in a moment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = [
    "The cat sat on the mat.\n\nIt was 12345 degrees; naïve cafés sold ☕ for 3.50 €.\n",
    "def f(x):\n    return x + 1\n",
] * 20


def trained() -> Tokenizer:
    """Byte-level BPE with 300 entries, <s> and </s> the first two."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def bpe() -> str:
    return trained().to_str()


@pytest.fixture
def make_folder(tmp_path: Path, bpe: str) -> Callable[..., Path]:
    """Writes a folder with tokenizer.json, its template adding what `template` names, and the
    tokenizer_config.json given."""

    def make(template: str | None = None, **config: Any) -> Path:
        tokenizer = Tokenizer.from_str(bpe)
        if template is not None:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
            )
        folder = tmp_path / "tokenizer"
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        eos_token = {"__type": "AddedToken", "content": "</s>", "special": True}
        defaults = {
            "bos_token": "<s>",
            "eos_token": eos_token,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(defaults | config))
        return folder

    return make
