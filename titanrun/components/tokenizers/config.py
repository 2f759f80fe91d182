"""The tokenizer slot and its choices."""

from pathlib import Path
from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics
from titanrun.config.types import Text


class TokenizerConfig(ComponentConfig):
    """Text to token ids and back."""

    slot: ClassVar = "tokenizer"
    is_slot: ClassVar = True

    @property
    def folder(self) -> Path:
        """Where the tokenizer's files are, in Hugging Face layout."""
        raise TypeError(f"{type(self).__name__} does not say where its files are")


class TinyTokenizerConfig(TokenizerConfig):
    """The byte-level BPE tokenizer with 2048 entries that ships with titanrun."""

    name: Literal["tiny"] = numerics("tiny")
    builds: ClassVar = "titanrun.components.tokenizers.huggingface:tiny_tokenizer"

    @property
    def folder(self) -> Path:
        """The folder that ships with titanrun."""
        return Path(__file__).parents[2] / "assets" / "tiny"


class CharactersTokenizerConfig(TokenizerConfig):
    """A token for each character: digits, small letters, space, line end and + - * / = < > ? ! . , : ; ( ) _, 56 entries in all. For small
    tasks."""

    name: Literal["characters"] = numerics("characters")
    builds: ClassVar = "titanrun.components.tokenizers.huggingface:characters_tokenizer"

    @property
    def folder(self) -> Path:
        """The folder that ships with titanrun."""
        return Path(__file__).parents[2] / "assets" / "characters"


class HuggingFaceTokenizerConfig(TokenizerConfig):
    """A tokenizer from a folder in Hugging Face layout."""

    name: Literal["huggingface"] = numerics("huggingface")
    builds: ClassVar = "titanrun.components.tokenizers.huggingface:folder_tokenizer"
    path: Text = numerics(examples=["assets/Llama-3.1-8B"])
    """Folder with tokenizer.json, or vocab.json and merges.txt, and tokenizer_config.json."""

    @property
    def folder(self) -> Path:
        """The folder named in the recipe."""
        return Path(self.path)
