"""The tokenizer slot and its choices."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.components.tokenizers.spec.named_templates import (
    TEMPLATE_TOKENS,
    is_template_file,
)
from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.types import OrAuto, Text

OWN_TEMPLATE = ("auto", "default", "none", "tokenizer", "tokenizer_default")
"""Words of other programs for the template in the tokenizer's folder."""


class TokenizerConfig(ComponentConfig):
    """Conversion of text to token ids and back."""

    slot: ClassVar = "tokenizer"
    is_slot: ClassVar = True
    builds_what: ClassVar = "an object with encode(text) and decode(ids)"
    built_attributes: ClassVar = ("encode", "decode", "vocab_size", "fingerprint")
    default_name: ClassVar = "huggingface"
    chat_template: Text | None = numerics(None, examples=["chatml", "mine.jinja"])
    """Chat template of conversations: a file with a Jinja template, or the name of one that ships
    with titanrun, such as chatml, llama3 or qwen3. If null, the one in the tokenizer's folder.
    Checkpoints and exports hold it."""
    stop_tokens: tuple[Text, ...] = numerics((), examples=[["<|im_end|>"]])
    """Tokens at which generation stops, beside eos_token, those of generation_config.json in the
    tokenizer's folder, and the one with which the chat template ends a reply."""

    @model_validator(mode="after")
    def _check_template_name(self) -> Self:
        name = self.chat_template
        if name is None or is_template_file(name) or name in TEMPLATE_TOKENS:
            return self
        known = format_word_list(sorted(TEMPLATE_TOKENS))
        family = [one for one in sorted(TEMPLATE_TOKENS) if one.startswith(name.lower())]
        nearest = find_closest(name, TEMPLATE_TOKENS)
        hint = f"did you mean '{nearest}'?" if nearest else f"known names: {known}; or a file"
        if name.lower() in OWN_TEMPLATE:
            hint = "remove it: the template in the tokenizer's folder is the default"
        elif len(family) > 1:
            hint = f"write {format_word_list(family)}, whichever the tokenizer was trained with"
        raise conflict_error(f"no chat template has the name '{name}'", "chat_template", hint=hint)

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
    path: OrAuto[Text] = numerics("auto", examples=["assets/Llama-3.1-8B"])
    """Folder with tokenizer.json, or vocab.json and merges.txt, and tokenizer_config.json. auto:
    the folder of the model, hf_assets_path."""

    @property
    def folder(self) -> Path:
        """Folder in the recipe."""
        return Path(self.path)
