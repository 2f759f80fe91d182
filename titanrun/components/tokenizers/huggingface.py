"""Tokenizers in Hugging Face layout, read with the tokenizers library."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from titanrun.components.tokenizers.config import (
    CharactersTokenizerConfig,
    HuggingFaceTokenizerConfig,
    TinyTokenizerConfig,
    TokenizerConfig,
)
from titanrun.components.tokenizers.spec.tokenizer_files import (
    TOKENIZER_JSON,
    VOCABULARY_AND_MERGES,
    TokenizerFolder,
    compute_tokenizer_fingerprint,
    load_json_object,
    open_tokenizer_folder,
)
from titanrun.components.tokenizers.tokenizer_protocol import IdsWithOffsets
from titanrun.config.problems import problem_error

SURROGATE = re.compile("[\ud800-\udfff]")
# characters of a text that a message shows
MAX_SHOWN = 40
ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class HuggingFaceTokenizer:
    """Tokenizer of one folder.

    Requested BOS and EOS tokens occur once, whether or not the tokenizer's own template adds them.
    Other tokens that the template puts before or after every text are added along with BOS and EOS.
    """

    def __init__(
        self,
        folder: TokenizerFolder,
        *,
        chat_template: str | None = None,
        stop_tokens: Sequence[str] = (),
    ) -> None:
        self._library = load_library_tokenizer(folder)
        self.folder, self.chat_template, self.stop_tokens = folder.path, chat_template, stop_tokens
        special_tokens = folder.special_tokens
        self.bos_id = self._find_token_id(special_tokens.get("bos_token"))
        self.eos_id = self._find_token_id(special_tokens.get("eos_token"))
        self.vocab_size = (
            max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        )
        self.fingerprint = compute_tokenizer_fingerprint(folder)
        before, after = self._find_template_ids()
        self._prefix_ids = (
            before if self.bos_id is None or self.bos_id in before else [self.bos_id, *before]
        )
        self._suffix_ids = (
            after if self.eos_id is None or self.eos_id in after else [*after, self.eos_id]
        )

    def encode(self, text: str, *, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        """Return the ids of one text, with the requested begin and end tokens."""
        return self.encode_batch([text], add_bos=add_bos, add_eos=add_eos)[0]

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = True, add_eos: bool = True
    ) -> list[list[int]]:
        """Return the ids of several texts, encoded in parallel.

        Raises:
            ProblemsFound: A text is none: it has half a surrogate pair.
        """
        before = self._prefix_ids if add_bos else []
        after = self._suffix_ids if add_eos else []
        try:
            # the fast variant omits the character offsets, which are not needed here
            found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            check_is_unicode(texts)
            raise
        return [[*before, *encoding.ids, *after] for encoding in found]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[IdsWithOffsets]:
        """Return ids and character offsets of several texts, without begin and end tokens."""
        return [
            (encoding.ids, encoding.offsets)
            for encoding in self._library.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._library.decode(list(ids), skip_special_tokens=True))

    def get_token_text(self, token: int) -> str:
        """Return the text of a token as it stands in the vocabulary, also of a special one."""
        return str(self._library.id_to_token(token))

    def dump_json(self, begin: Sequence[int], end: Sequence[int]) -> str:
        """Return the library's JSON of a tokenizer that adds given ids to each text itself."""
        copy = LibraryTokenizer.from_str(self._library.to_str())
        # the template needs a name for each id, not its text, which it would parse
        names = {token: f"T{token}" for token in (*begin, *end)}
        copy.post_processor = processors.TemplateProcessing(
            single=[*(names[token] for token in begin), "$A", *(names[token] for token in end)],
            special_tokens=[(name, token) for token, name in names.items()],
        )
        return str(copy.to_str())

    def _find_token_id(self, text: str | None) -> int | None:
        return None if text is None else self._library.token_to_id(text)

    def _find_template_ids(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer itself puts before and after a text.

        They are found by encoding a text with and without them.
        """
        bare = self._library.encode("a", add_special_tokens=False).ids
        full = self._library.encode("a", add_special_tokens=True).ids
        if not bare:
            split = int(full[:1] == [self.bos_id])
            return full[:split], full[split:]
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []


def build_tiny_tokenizer(config: TinyTokenizerConfig) -> HuggingFaceTokenizer:
    """Build the tokenizer that ships with titanrun."""
    return open_tokenizer(config)


def build_characters_tokenizer(config: CharactersTokenizerConfig) -> HuggingFaceTokenizer:
    """Build the tokenizer that ships with titanrun, with a token for each character."""
    return open_tokenizer(config)


def build_huggingface_tokenizer(config: HuggingFaceTokenizerConfig) -> HuggingFaceTokenizer:
    """Build the tokenizer in a folder.

    Raises:
        ProblemsFound: A data problem at `path` if the folder has none.
    """
    return open_tokenizer(config)


def open_tokenizer(config: TokenizerConfig) -> HuggingFaceTokenizer:
    """Return the tokenizer of a config with a folder."""
    return HuggingFaceTokenizer(
        open_tokenizer_folder(config.folder),
        chat_template=config.chat_template,
        stop_tokens=config.stop_tokens,
    )


def load_library_tokenizer(folder: TokenizerFolder) -> LibraryTokenizer:
    """Return the library's tokenizer with all special tokens, without truncation and padding."""
    library = (
        load_tokenizer_json(folder.path)
        if folder.has_tokenizer_json
        else load_bpe_tokenizer(folder.path)
    )
    library.add_tokens([to_added_token(entry) for entry in folder.added_tokens.values()])
    check_added_tokens(library, folder)
    library.add_special_tokens(list(dict.fromkeys(folder.special_tokens.values())))
    # a tokenizer.json may hold the limits of the model it was saved with; documents are split into
    # sequences later
    library.no_truncation()
    library.no_padding()
    return library


def load_tokenizer_json(path: Path) -> LibraryTokenizer:
    """Return the tokenizer in tokenizer.json."""
    file = path / TOKENIZER_JSON
    try:
        return LibraryTokenizer.from_file(str(file))
    except (
        Exception
    ) as error:  # the library raises no narrower type for a file that it cannot parse
        load_json_object(file)
        message = f"'{file}' cannot be read as a tokenizer: {error}"
        raise problem_error(
            "data", message, path=("path",), hint="fetch or save the tokenizer again"
        ) from None


def load_bpe_tokenizer(path: Path) -> LibraryTokenizer:
    """Return the byte-level BPE of vocab.json and merges.txt.

    No space is put before the first word.
    """
    vocabulary, merges = (path / name for name in VOCABULARY_AND_MERGES)
    try:
        library = LibraryTokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # as above
        load_json_object(vocabulary)
        message = f"'{vocabulary}' and '{merges.name}' cannot be read as a tokenizer: {error}"
        raise problem_error(
            "data", message, path=("path",), hint="fetch or save the tokenizer again"
        ) from None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def check_added_tokens(library: LibraryTokenizer, folder: TokenizerFolder) -> None:
    """Check the ids of added tokens against tokenizer_config.json.

    The library assigns ids of added tokens itself. The model was trained with the ids in
    tokenizer_config.json.
    """
    for declared, entry in folder.added_tokens.items():
        given = library.token_to_id(entry["content"])
        if given != declared:
            message = (
                f"tokenizer_config.json in '{folder.path}' gives '{entry['content']}' "
                f"the id {declared}, its vocabulary {given}"
            )
            raise problem_error(
                "data",
                message,
                path=("path",),
                hint="take all files of the tokenizer from the same place",
            )


def to_added_token(entry: dict[str, object]) -> AddedToken:
    """Return a token of added_tokens_decoder as the library represents it."""
    switches = {name: bool(entry[name]) for name in ADDED_TOKEN_FLAGS if name in entry}
    return AddedToken(str(entry["content"]), **switches)


def check_is_unicode(texts: Sequence[str]) -> None:
    """Raise a data problem for the first text with half a surrogate pair.

    JSON can encode one, and bytes of a command line that are not UTF-8 become such halves.
    """
    found = next(filter(None, map(SURROGATE.search, texts)), None)
    if found is None:
        return
    start = max(0, found.start() - MAX_SHOWN // 2)
    part = found.string[start : start + MAX_SHOWN]
    shown = part.encode("utf-8", "backslashreplace").decode()
    raise problem_error(
        "data",
        f"'{shown}' is not Unicode text: it has half a surrogate pair, or bytes that are not UTF-8",
        hint="write it in UTF-8",
    )
