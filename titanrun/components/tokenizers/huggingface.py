"""Tokenizers in Hugging Face layout, through the tokenizers library."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from titanrun.components.tokenizers.config import (
    CharactersTokenizerConfig,
    HuggingFaceTokenizerConfig,
    TinyTokenizerConfig,
)
from titanrun.components.tokenizers.tokenizer import PlacedIds
from titanrun.components.tokenizers.vocabulary import (
    TOKENIZER_JSON,
    VOCABULARY_AND_MERGES,
    TokenizerFolder,
    fingerprint,
    open_folder,
    read_object,
)
from titanrun.config.problems import fail

ADDED_TOKEN_SWITCHES = ("single_word", "lstrip", "rstrip", "normalized", "special")


class FolderTokenizer:
    """The tokenizer of one folder.

    BOS and EOS stand once where they are asked for, whether or not the tokenizer's own template adds them. Tokens that the
    template puts before or after every text besides those come along with BOS and EOS.
    """

    def __init__(self, folder: TokenizerFolder) -> None:
        self._library = load(folder)
        self.folder = folder.path
        special_tokens = folder.special_tokens
        self.bos_id = self._id_of(special_tokens.get("bos_token"))
        self.eos_id = self._id_of(special_tokens.get("eos_token"))
        self.vocab_size = (
            max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        )
        self.fingerprint = fingerprint(folder)
        before, after = self._template()
        self._before = (
            before if self.bos_id is None or self.bos_id in before else [self.bos_id, *before]
        )
        self._after = (
            after if self.eos_id is None or self.eos_id in after else [*after, self.eos_id]
        )

    def encode(self, text: str, *, bos: bool = True, eos: bool = True) -> list[int]:
        """The ids of one text, with the begin and end tokens asked for."""
        return self.encode_batch([text], bos=bos, eos=eos)[0]

    def encode_batch(
        self, texts: Sequence[str], *, bos: bool = True, eos: bool = True
    ) -> list[list[int]]:
        """The ids of several texts, encoded in parallel."""
        before = self._before if bos else []
        after = self._after if eos else []
        # the fast variant leaves out the character offsets, which nobody reads here
        return [
            [*before, *encoding.ids, *after]
            for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def encode_placed(self, texts: Sequence[str]) -> list[PlacedIds]:
        """The ids of several texts without begin and end tokens, with the characters that each stands for."""
        return [
            (encoding.ids, encoding.offsets)
            for encoding in self._library.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return str(self._library.decode(list(ids), skip_special_tokens=True))

    def _id_of(self, text: str | None) -> int | None:
        return None if text is None else self._library.token_to_id(text)

    def _template(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer by itself puts before and after a text, found by encoding one with and without them."""
        bare = self._library.encode("a", add_special_tokens=False).ids
        full = self._library.encode("a", add_special_tokens=True).ids
        if not bare:
            split = int(full[:1] == [self.bos_id])
            return full[:split], full[split:]
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []


def tiny_tokenizer(config: TinyTokenizerConfig) -> FolderTokenizer:
    """The tokenizer that ships with titanrun."""
    return FolderTokenizer(open_folder(config.folder))


def characters_tokenizer(config: CharactersTokenizerConfig) -> FolderTokenizer:
    """The tokenizer that ships with titanrun, with a token for each character."""
    return FolderTokenizer(open_folder(config.folder))


def folder_tokenizer(config: HuggingFaceTokenizerConfig) -> FolderTokenizer:
    """The tokenizer in a folder. Raises a data problem, placed at `path`, where there is none."""
    return FolderTokenizer(open_folder(config.folder))


def load(folder: TokenizerFolder) -> LibraryTokenizer:
    """The library's tokenizer with all special tokens, without truncation and padding."""
    library = (
        from_tokenizer_json(folder.path)
        if folder.has_tokenizer_json
        else from_vocabulary(folder.path)
    )
    library.add_tokens([added_token(entry) for entry in folder.added_tokens.values()])
    check_added_tokens(library, folder)
    library.add_special_tokens(list(dict.fromkeys(folder.special_tokens.values())))
    # a tokenizer.json may carry the limits of the model it was saved with; documents are cut into rows later
    library.no_truncation()
    library.no_padding()
    return library


def from_tokenizer_json(path: Path) -> LibraryTokenizer:
    """The tokenizer in tokenizer.json."""
    file = path / TOKENIZER_JSON
    try:
        return LibraryTokenizer.from_file(str(file))
    except (
        Exception
    ) as error:  # the library raises no narrower type for a file that it does not understand
        read_object(file)
        message = f"'{file}' cannot be read as a tokenizer: {error}"
        raise fail(
            "data", message, path=("path",), help="fetch or save the tokenizer again"
        ) from None


def from_vocabulary(path: Path) -> LibraryTokenizer:
    """Byte-level BPE from vocab.json and merges.txt, no space put before the first word."""
    vocabulary, merges = (path / name for name in VOCABULARY_AND_MERGES)
    try:
        library = LibraryTokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # as above
        read_object(vocabulary)
        message = f"'{vocabulary}' and '{merges.name}' cannot be read as a tokenizer: {error}"
        raise fail(
            "data", message, path=("path",), help="fetch or save the tokenizer again"
        ) from None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def check_added_tokens(library: LibraryTokenizer, folder: TokenizerFolder) -> None:
    """The library numbers added tokens by itself; where tokenizer_config.json says another id, the model was trained with that one."""
    for declared, entry in folder.added_tokens.items():
        given = library.token_to_id(entry["content"])
        if given != declared:
            message = f"tokenizer_config.json in '{folder.path}' gives '{entry['content']}' the id {declared}, its vocabulary {given}"
            raise fail(
                "data",
                message,
                path=("path",),
                help="take all files of the tokenizer from the same place",
            )


def added_token(entry: dict[str, object]) -> AddedToken:
    """A token of added_tokens_decoder as the library takes it."""
    switches = {name: bool(entry[name]) for name in ADDED_TOKEN_SWITCHES if name in entry}
    return AddedToken(str(entry["content"]), **switches)
