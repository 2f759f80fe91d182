"""What the files of a tokenizer folder say by themselves, read without any library: its vocabulary and its special tokens."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from titanrun.config.problems import ProblemsFound, fail

TOKENIZER_JSON = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
VOCABULARY_AND_MERGES = ("vocab.json", "merges.txt")
# later files win: special_tokens_map.json is what older tokenizers saved beside tokenizer_config.json
SPECIAL_TOKEN_FILES = ("special_tokens_map.json", "tokenizer_config.json")
SPECIAL_TOKEN_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
MOST_FILES_LISTED = 12


@dataclass(frozen=True)
class TokenizerFolder:
    """A folder in Hugging Face layout that is known to hold a tokenizer; made by `open_folder`."""

    path: Path

    @property
    def has_tokenizer_json(self) -> bool:
        """Whether one file holds the whole tokenizer; else it is vocab.json with merges.txt."""
        return (self.path / TOKENIZER_JSON).is_file()

    @property
    def files(self) -> list[Path]:
        """Every file that decides how text is encoded."""
        model_files = (TOKENIZER_JSON,) if self.has_tokenizer_json else VOCABULARY_AND_MERGES
        return [
            file
            for name in (*model_files, *SPECIAL_TOKEN_FILES)
            if (file := self.path / name).is_file()
        ]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What tokenizer_config.json says, and special_tokens_map.json where it is silent."""
        settings: dict[str, Any] = {}
        for file in (self.path / name for name in SPECIAL_TOKEN_FILES):
            if file.is_file():
                settings |= {
                    key: value for key, value in read_object(file).items() if value is not None
                }
        return settings

    @property
    def special_tokens(self) -> dict[str, str]:
        """Text of each special token that has a role, such as bos_token."""
        texts = {role: token_text(self.settings.get(role)) for role in SPECIAL_TOKEN_ROLES}
        return {role: text for role, text in texts.items() if text}

    @property
    def added_tokens(self) -> dict[int, dict[str, Any]]:
        """Entries of added_tokens_decoder in the order of their ids: each has `content` and perhaps `special`, `lstrip` and the like."""
        decoder = self.settings.get("added_tokens_decoder")
        if not isinstance(decoder, Mapping):
            return {}
        entries = {
            int(key): value
            for key, value in decoder.items()
            if key.isdecimal() and isinstance(value, dict) and token_text(value)
        }
        return dict(sorted(entries.items()))


def open_folder(path: Path) -> TokenizerFolder:
    """The tokenizer folder at `path`. Raises a data problem, placed at `path` of the tokenizer's config, where there is none."""
    if not path.exists():
        help = f"name the folder that holds tokenizer.json; titanrun download OWNER/NAME -o {path} fetches one"
        raise fail("data", f"there is no folder '{path}'", path=("path",), help=help)
    if not path.is_dir():
        raise fail(
            "data",
            f"'{path}' is a file, not a folder",
            path=("path",),
            help=f"name the folder that holds it: {path.parent}",
        )
    whole = (path / TOKENIZER_JSON).is_file()
    if not whole and not all((path / name).is_file() for name in VOCABULARY_AND_MERGES):
        raise no_tokenizer(path)
    return TokenizerFolder(path)


def no_tokenizer(path: Path) -> ProblemsFound:
    """The problem of a folder without a tokenizer, with the files it does hold."""
    names = sorted(entry.name for entry in path.iterdir())
    found = ", ".join(names[:MOST_FILES_LISTED]) + (
        f" and {len(names) - MOST_FILES_LISTED} more" if len(names) > MOST_FILES_LISTED else ""
    )
    help = "a tokenizer is tokenizer.json, or vocab.json with merges.txt"
    if "tokenizer.model" in names:
        help += "; AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers makes one from tokenizer.model"
    return fail(
        "data",
        f"'{path}' holds no tokenizer; found: {found or 'nothing'}",
        path=("path",),
        help=help,
    )


def chat_template(folder: Path) -> str:
    """The chat template of a folder, from its own file or from tokenizer_config.json; of several the one called `default`.

    Raises a data problem where there is none.
    """
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = open_folder(folder).settings.get("chat_template")
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
        raise fail(
            "data",
            f"the tokenizer in '{folder}' has no chat template",
            path=("path",),
            help=f"put one into '{file}'",
        )
    return found


def vocabulary_size(folder: Path) -> int:
    """Highest token id of the tokenizer in `folder` plus one, added tokens included: the rows its embedding needs.

    Raises a data problem where the folder or a file in it cannot be read as a tokenizer.
    """
    return max([-1, *token_ids(folder).values()]) + 1


def special_token_ids(folder: Path) -> dict[str, int]:
    """Id of each special token that has a role, such as bos_token. Raises a data problem as `vocabulary_size` does."""
    ids = token_ids(folder)
    return {
        role: ids[text] for role, text in open_folder(folder).special_tokens.items() if text in ids
    }


def token_ids(folder: Path) -> dict[str, int]:
    """Every token of the tokenizer in `folder` with its id, added ones included."""
    opened = open_folder(folder)
    added: dict[str, int] = {}
    if opened.has_tokenizer_json:
        file = folder / TOKENIZER_JSON
        data = read_object(file)
        ids = model_vocabulary(data, file)
        added = {token["content"]: token["id"] for token in added_tokens(data)}
    else:
        file = folder / VOCABULARY_AND_MERGES[0]
        ids = checked_ids(read_object(file), file)
    declared = [entry["content"] for entry in opened.added_tokens.values()]
    add_missing([*declared, *opened.special_tokens.values()], ids=ids, added=added)
    return {**ids, **added}


def add_missing(contents: Iterable[str], *, ids: Mapping[str, int], added: dict[str, int]) -> None:
    """Give tokens that have no id yet the next free one, as the tokenizers library does when they are added."""
    for content in contents:
        if content not in ids and content not in added:
            added[content] = max([len(ids), *(number + 1 for number in added.values())])


def model_vocabulary(data: Mapping[str, Any], file: Path) -> dict[str, int]:
    """Token to id in the model of a tokenizer.json; a unigram model lists its tokens in the order of their ids."""
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list) and all(
        isinstance(entry, list) and entry for entry in vocabulary
    ):
        vocabulary = {str(entry[0]): index for index, entry in enumerate(vocabulary)}
    return checked_ids(vocabulary, file)


def checked_ids(vocabulary: object, file: Path) -> dict[str, int]:
    """Token to id as a file holds it. Raises a data problem where it is something else."""
    if not isinstance(vocabulary, dict) or not all(type(id) is int for id in vocabulary.values()):
        raise fail(
            "data",
            f"'{file}' holds no vocabulary",
            path=("path",),
            help="fetch or save the tokenizer again",
        )
    return vocabulary


def added_tokens(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries of `added_tokens` in a tokenizer.json, each with `content` and `id`."""
    entries = data.get("added_tokens")
    if not isinstance(entries, list):
        return []
    return [
        entry
        for entry in entries
        if isinstance(entry, dict) and token_text(entry) and type(entry.get("id")) is int
    ]


def token_text(token: object) -> str | None:
    """The text of a token, which is written as a string or as a mapping with `content`."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises a data problem that names the place where it is not one."""
    try:
        data = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        message = f"'{file}' is not JSON at line {error.lineno} column {error.colno}"
        raise fail(
            "data", message, path=("path",), help="fetch or save the tokenizer again"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise fail(
            "data",
            f"'{file}' cannot be read: {error}",
            path=("path",),
            help="fetch or save the tokenizer again",
        ) from None
    if not isinstance(data, dict):
        raise fail(
            "data",
            f"'{file}' is not a JSON object",
            path=("path",),
            help="fetch or save the tokenizer again",
        )
    return data


def fingerprint(folder: TokenizerFolder) -> str:
    """Hash of the names and bytes of the files that make the tokenizer."""
    digest = hashlib.sha256()
    for file in folder.files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
