"""The vocabulary of a GGUF file, from the files of a byte-level BPE tokenizer."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from titanrun.components.tokenizers.spec.tokenizer_files import (
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    load_json_object,
    load_special_token_ids,
)
from titanrun.config.problems import ProblemsFound, problem_error

# token types of the format
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS_AND_SPACE = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTERS_BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + f"{CONTRACTIONS}?|"
    + r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    + f"{CONTRACTIONS}?|"
    + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = "gpt-2"
DEEPSEEK = (
    r"\p{N}{1,3}",
    # Chinese characters, hiragana and katakana
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# the splits that llama.cpp knows, by their patterns. A wrong one ruins texts without a message.
PRE_TOKENIZERS = {
    (f"{CONTRACTIONS}|{WORDS_AND_SPACE % '{1,3}'}",): "llama-bpe",
    (f"{CONTRACTIONS}|{WORDS_AND_SPACE % ''}",): "qwen2",
    (LETTERS_BY_CASE,): "gpt-4o",
    DEEPSEEK: "deepseek-v3",
}
# what keeps the white space that its marks removed, but is no statement of templates elsewhere
GENERATION_BLOCK = re.compile(r"\{%([-+]?)\s*(?:end)?generation\s*([-+]?)%\}")


def add_tokenizer(
    writer: Any, folder: Path, *, vocab_size: int, template: str | None, end_ids: Collection[int]
) -> None:
    """Write the vocabulary, its special tokens and the chat template.

    Args:
        writer: The writer of the `gguf` package.
        folder: Folder with tokenizer.json.
        vocab_size: Rows of the embedding; ids without a token are marked as unused.
        template: The chat template, if there is one.
        end_ids: Ids that end a reply, beside the tokenizer's end-of-text token.

    Raises:
        ProblemsFound: A data problem if the format has no such tokenizer.
    """
    data = load_json_object(folder / TOKENIZER_JSON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(find_pre_tokenizer(data))
    tokens, types = list_tokens(data, vocab_size)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    )
    ids = load_special_token_ids(folder)
    for role in ("bos", "eos", "pad", "unk"):
        if (found := ids.get(f"{role}_token")) is not None:
            getattr(writer, f"add_{role}_token_id")(found)
    # llama.cpp stops at both
    if ends := sorted(set(end_ids) - {ids.get("eos_token")}):
        writer.add_eot_token_id(ends[0])
    settings_file = folder / TOKENIZER_CONFIG
    settings = load_json_object(settings_file) if settings_file.is_file() else {}
    writes_bos = template is not None and writes_begin_token(template, settings)
    # llama.cpp takes a begin token from the front of what a template writes, and then adds its own
    writer.add_add_bos_token(writes_bos or settings.get("add_bos_token") is True)
    if template is not None:
        writer.add_chat_template(
            GENERATION_BLOCK.sub(lambda found: f"{{#{found[1]}{found[2]}#}}", template)
        )


def find_pre_tokenizer(data: Mapping[str, Any]) -> str:
    """Return the format's name of the way in which a tokenizer splits texts.

    Raises:
        ProblemsFound: A data problem if it has no name, or the tokenizer is not byte-level BPE.
    """
    model, split = data.get("model") or {}, data.get("pre_tokenizer") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise unknown_tokenizer_error(f"{model.get('type')} is not byte-level BPE")
    steps = split.get("pretokenizers", [split]) if split.get("type") == "Sequence" else [split]
    *before, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise unknown_tokenizer_error("it does not end with ByteLevel, without a space in front")
    if not before and last.get("use_regex", True):
        return GPT2
    patterns = tuple((step.get("pattern") or {}).get("Regex") for step in before)
    # a line end may stand in a pattern as it is
    name = PRE_TOKENIZERS.get(
        tuple(str(one).replace("\r", r"\r").replace("\n", r"\n") for one in patterns)
    )
    if name is None or last.get("use_regex", True):
        raise unknown_tokenizer_error(f"it splits texts by {json.dumps(patterns)}")
    # with ignore_merges a word of the vocabulary is one token: llama.cpp does so for llama-bpe
    if bool(model.get("ignore_merges")) is not (name == "llama-bpe"):
        raise unknown_tokenizer_error(f"ignore_merges is {model.get('ignore_merges')} for {name}")
    return name


def unknown_tokenizer_error(why: str) -> ProblemsFound:
    """Return the problem of a tokenizer that the format does not have."""
    return problem_error(
        "data",
        f"GGUF has no name for this tokenizer: {why}",
        path=("tokenizer",),
        hint="export with --format hf and use convert_hf_to_gguf.py of llama.cpp",
    )


def list_tokens(data: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """Return the text and the type of each id.

    Raises:
        ProblemsFound: A data problem if a token has no row in the embedding.
    """
    texts = {number: text for text, number in data["model"]["vocab"].items()}
    types = dict.fromkeys(texts, NORMAL)
    for token in data.get("added_tokens") or []:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token.get("special") else USER_DEFINED
    if texts and max(texts) >= vocab_size:
        raise problem_error(
            "data",
            f"the tokenizer has token {max(texts)}, but the embedding {vocab_size:,} rows",
            path=("tokenizer",),
            hint="use the tokenizer that the model was trained with",
        )
    return (
        [texts.get(number, f"[PAD{number}]") for number in range(vocab_size)],
        [types.get(number, UNUSED) for number in range(vocab_size)],
    )


def writes_begin_token(template: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a template writes the begin-of-text token itself."""
    token = settings.get("bos_token")
    text = token.get("content") if isinstance(token, Mapping) else token
    return "bos_token" in template or (isinstance(text, str) and text in template)
