"""Vocabulary and special tokens of a tokenizer folder, read without any library."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.near_path import suggest_near_path
from titanrun.config.problems import ProblemsFound, problem_error

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
VOCABULARY_AND_MERGES = ("vocab.json", "merges.txt")
# later files win: older tokenizers saved special_tokens_map.json next to tokenizer_config.json
SPECIAL_TOKEN_FILES = ("special_tokens_map.json", TOKENIZER_CONFIG)
SPECIAL_TOKEN_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# beside what determines the encoding: for other programs
OTHER_FILES = (CHAT_TEMPLATE, "chat_template.json", "added_tokens.json", "tokenizer.model")
MAX_FILES_LISTED = 12


@dataclass(frozen=True)
class TokenizerFolder:
    """Folder in Hugging Face layout that holds a tokenizer, from `open_tokenizer_folder`."""

    path: Path

    @property
    def has_tokenizer_json(self) -> bool:
        """Whether one file holds the whole tokenizer, instead of vocab.json with merges.txt."""
        return (self.path / TOKENIZER_JSON).is_file()

    @property
    def files(self) -> list[Path]:
        """Files that determine the encoding of text."""
        model_files = (TOKENIZER_JSON,) if self.has_tokenizer_json else VOCABULARY_AND_MERGES
        return [
            file
            for name in (*model_files, *SPECIAL_TOKEN_FILES)
            if (file := self.path / name).is_file()
        ]

    @property
    def all_files(self) -> list[Path]:
        """Files that a copy of the tokenizer needs, with its chat template."""
        others = (self.path / name for name in OTHER_FILES)
        return [*self.files, *(file for file in others if file.is_file())]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Content of tokenizer_config.json, completed by special_tokens_map.json."""
        settings: dict[str, Any] = {}
        for file in (self.path / name for name in SPECIAL_TOKEN_FILES):
            if file.is_file():
                settings |= {
                    key: value for key, value in load_json_object(file).items() if value is not None
                }
        return settings

    @property
    def special_tokens(self) -> dict[str, str]:
        """Text of each special token with a role, such as bos_token."""
        texts = {role: find_token_text(self.settings.get(role)) for role in SPECIAL_TOKEN_ROLES}
        return {role: text for role, text in texts.items() if text}

    @property
    def added_tokens(self) -> dict[int, dict[str, Any]]:
        """Entries of added_tokens_decoder by id, ascending.

        Each has `content` and perhaps `special`, `lstrip` and the like.
        """
        decoder = self.settings.get("added_tokens_decoder")
        if not isinstance(decoder, Mapping):
            return {}
        entries = {
            int(key): value
            for key, value in decoder.items()
            if key.isdecimal() and isinstance(value, dict) and find_token_text(value)
        }
        return dict(sorted(entries.items()))


def open_tokenizer_folder(path: Path) -> TokenizerFolder:
    """Return the tokenizer folder at `path`.

    Raises:
        ProblemsFound: A data problem, at `path` of the tokenizer's config, if there is none.
    """
    if not path.exists():
        hint = suggest_near_path(str(path), only_folders=True) or (
            "name the folder that holds tokenizer.json; "
            f"titanrun download OWNER/NAME -o {path} fetches one"
        )
        raise problem_error("data", f"folder not found: '{path}'", path=("path",), hint=hint)
    if not path.is_dir():
        raise problem_error(
            "data",
            f"'{path}' is a file, not a folder",
            path=("path",),
            hint=f"name the folder that holds it: {path.parent}",
        )
    whole = (path / TOKENIZER_JSON).is_file()
    if not whole and not all((path / name).is_file() for name in VOCABULARY_AND_MERGES):
        raise missing_tokenizer_error(path)
    return TokenizerFolder(path)


def missing_tokenizer_error(path: Path) -> ProblemsFound:
    """Build the problem of a folder without a tokenizer, listing its files."""
    names = sorted(entry.name for entry in path.iterdir())
    found = ", ".join(names[:MAX_FILES_LISTED]) + (
        f" and {len(names) - MAX_FILES_LISTED} more" if len(names) > MAX_FILES_LISTED else ""
    )
    hint = "a tokenizer is tokenizer.json, or vocab.json with merges.txt"
    if "tokenizer.model" in names:
        hint += (
            "; AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers "
            "makes one from tokenizer.model"
        )
    return problem_error(
        "data",
        f"'{path}' holds no tokenizer; found: {found or 'nothing'}",
        path=("path",),
        hint=hint,
    )


def load_chat_template_text(folder: Path) -> str:
    """Return the chat template of a folder, from its own file or from tokenizer_config.json.

    Of several templates, it is the one named `default`.

    Raises:
        ProblemsFound: A data problem if there is none.
    """
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = open_tokenizer_folder(folder).settings.get("chat_template")
    if isinstance(found, list):
        found = next(
            (
                entry.get("template")
                for entry in found
                if isinstance(entry, dict) and entry.get("name") == "default"
            ),
            None,
        )
    if not isinstance(found, str):
        raise problem_error(
            "data",
            f"the tokenizer in '{folder}' has no chat template",
            path=("path",),
            hint=f"put one into '{file}'",
        )
    return found


def get_vocab_size(folder: Path) -> int:
    """Return the highest token id in `folder` plus one: the rows that an embedding needs.

    Added tokens are included.

    Raises:
        ProblemsFound: A data problem if the folder or a file in it cannot be read as a tokenizer.
    """
    return max([-1, *load_vocab(folder).values()]) + 1


def load_special_token_ids(folder: Path) -> dict[str, int]:
    """Return the id of each special token with a role, such as bos_token.

    Raises:
        ProblemsFound: A data problem as in `get_vocab_size`.
    """
    ids = load_vocab(folder)
    return {
        role: ids[text]
        for role, text in open_tokenizer_folder(folder).special_tokens.items()
        if text in ids
    }


def load_vocab(folder: Path) -> dict[str, int]:
    """Return every token of the tokenizer in `folder` with its id, including added ones."""
    opened = open_tokenizer_folder(folder)
    added: dict[str, int] = {}
    if opened.has_tokenizer_json:
        file = folder / TOKENIZER_JSON
        data = load_json_object(file)
        ids = parse_model_vocab(data, file)
        added = {token["content"]: token["id"] for token in get_added_tokens(data)}
    else:
        file = folder / VOCABULARY_AND_MERGES[0]
        ids = parse_vocab(load_json_object(file), file)
    declared = [entry["content"] for entry in opened.added_tokens.values()]
    assign_missing_ids([*declared, *opened.special_tokens.values()], ids=ids, added=added)
    return {**ids, **added}


def assign_missing_ids(
    contents: Iterable[str], *, ids: Mapping[str, int], added: dict[str, int]
) -> None:
    """Assign the next free id to tokens without one, as the tokenizers library does."""
    for content in contents:
        if content not in ids and content not in added:
            added[content] = max([len(ids), *(number + 1 for number in added.values())])


def parse_model_vocab(data: Mapping[str, Any], file: Path) -> dict[str, int]:
    """Return token to id of the model in a tokenizer.json.

    A unigram model lists its tokens by id.
    """
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list) and all(
        isinstance(entry, list) and entry for entry in vocabulary
    ):
        vocabulary = {str(entry[0]): index for index, entry in enumerate(vocabulary)}
    return parse_vocab(vocabulary, file)


def parse_vocab(vocabulary: object, file: Path) -> dict[str, int]:
    """Return a vocabulary from token to id. Raise a data problem if it is something else."""
    if not isinstance(vocabulary, dict) or not all(
        type(token_id) is int for token_id in vocabulary.values()
    ):
        raise problem_error(
            "data",
            f"'{file}' holds no vocabulary",
            path=("path",),
            hint="fetch or save the tokenizer again",
        )
    return vocabulary


def get_added_tokens(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return entries of `added_tokens` in a tokenizer.json, each with `content` and `id`."""
    entries = data.get("added_tokens")
    if not isinstance(entries, list):
        return []
    return [
        entry
        for entry in entries
        if isinstance(entry, dict) and find_token_text(entry) and type(entry.get("id")) is int
    ]


def find_token_text(token: object) -> str | None:
    """Return the text of a token, which is a string or a mapping with `content`."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def load_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ProblemsFound: A data problem with the position of the error.
    """
    try:
        data = parse_json(file.read_bytes())
    except json.JSONDecodeError as error:
        message = f"'{file}' is not JSON at line {error.lineno} column {error.colno}"
        raise problem_error(
            "data", message, path=("path",), hint="fetch or save the tokenizer again"
        ) from None
    except (OSError, ValueError) as error:
        raise problem_error(
            "data",
            f"'{file}' cannot be read: {error}",
            path=("path",),
            hint="fetch or save the tokenizer again",
        ) from None
    if not isinstance(data, dict):
        raise problem_error(
            "data",
            f"'{file}' is not a JSON object",
            path=("path",),
            hint="fetch or save the tokenizer again",
        )
    return data


def compute_tokenizer_fingerprint(folder: TokenizerFolder) -> str:
    """Return a hash of the names and bytes of the files of the tokenizer."""
    digest = hashlib.sha256()
    for file in folder.files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
