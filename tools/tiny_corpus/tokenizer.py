"""Trains the byte-level BPE tokenizer and turns documents into token streams."""

import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 2048
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer of VOCAB_SIZE entries.

    The last two entries are BOS and EOS.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as `transformers` reads them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def tokenise(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """All documents, each as BOS, its tokens and EOS, in one row of uint16."""
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    stream: list[int] = []
    for encoding in tokenizer.encode_batch(documents):
        stream += [bos, *encoding.ids, eos]
    return np.array(stream, dtype=np.uint16)


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the token frequencies, in nats."""
    counts = np.bincount(tokens)
    frequencies = counts[counts > 0] / len(tokens)
    return float(-(frequencies * np.log(frequencies)).sum())
