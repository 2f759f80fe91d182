"""Tokens at which generation stops, read from a folder in Hugging Face layout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.components.tokenizers.spec.tokenizer_files import (
    TOKENIZER_JSON,
    find_token_text,
    get_added_tokens,
    load_json_object,
    load_vocab,
    open_tokenizer_folder,
)

STOP_TOKEN_FILES = ("generation_config.json", "config.json")


def load_stop_tokens(folder: Path) -> dict[str, int]:
    """Return the tokens at which generation stops, each with its id.

    These are the tokenizer's eos_token, and those that `eos_token_id` in generation_config.json or
    config.json names.

    Raises:
        ProblemsFound: A data problem if a file cannot be read.
    """
    ids = load_vocab(folder)
    eos = open_tokenizer_folder(folder).special_tokens.get("eos_token")
    stop_ids = {
        number
        for name in STOP_TOKEN_FILES
        if (folder / name).is_file()
        for number in list_eos_ids(load_json_object(folder / name))
    }
    return {text: number for text, number in ids.items() if text == eos or number in stop_ids}


def list_eos_ids(config: Mapping[str, Any]) -> list[int]:
    """Return the ids in `eos_token_id`, which is a number or a list of them."""
    found = config.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return [number for number in ids if type(number) is int]


def load_special_token_texts(folder: Path) -> frozenset[str]:
    """Return the text of every added token, and of every token with a role, such as eos_token.

    Raises:
        ProblemsFound: A data problem if a file cannot be read.
    """
    opened = open_tokenizer_folder(folder)
    entries = [*opened.added_tokens.values()]
    if opened.has_tokenizer_json:
        entries += get_added_tokens(load_json_object(folder / TOKENIZER_JSON))
    texts = {text for entry in entries if (text := find_token_text(entry))}
    return frozenset(texts | set(opened.special_tokens.values()))
