"""The tokenizer slot and its choices."""

from pathlib import Path
from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics
from titanrun.config.types import Text


class TokenizerConfig(ComponentConfig):
    """Conversion of text to token ids and back."""

    slot: ClassVar = "tokenizer"
    is_slot: ClassVar = True

    @property
    def folder(self) -> Path:
        """Folder of the tokenizer's files, in Hugging Face layout."""
        raise TypeError(f"{type(self).__name__} does not define the folder of its files")


class TinyTokenizerConfig(TokenizerConfig):
    """The byte-level BPE tokenizer with 2048 entries that ships with titanrun."""

    name: Literal["tiny"] = numerics("tiny")
    builds: ClassVar = "titanrun.components.tokenizers.huggingface:build_tiny_tokenizer"

    @property
    def folder(self) -> Path:
        """Folder that ships with titanrun."""
        return Path(__file__).parents[2] / "assets" / "tiny"


class CharactersTokenizerConfig(TokenizerConfig):
    """A token for each character, 56 entries in all. For small tasks.

    The characters are digits, small letters, space, line end and + - * / = < > ? ! . , : ; ( ) _
    """

    name: Literal["characters"] = numerics("characters")
    builds: ClassVar = "titanrun.components.tokenizers.huggingface:build_characters_tokenizer"

    @property
    def folder(self) -> Path:
        """Folder that ships with titanrun."""
        return Path(__file__).parents[2] / "assets" / "characters"


class HuggingFaceTokenizerConfig(TokenizerConfig):
    """A tokenizer from a folder in Hugging Face layout."""

    name: Literal["huggingface"] = numerics("huggingface")
    builds: ClassVar = "titanrun.components.tokenizers.huggingface:build_huggingface_tokenizer"
    path: Text = numerics(examples=["assets/Llama-3.1-8B"])
    """Folder with tokenizer.json, or vocab.json and merges.txt, and tokenizer_config.json."""

    @property
    def folder(self) -> Path:
        """Folder in the recipe."""
        return Path(self.path)
