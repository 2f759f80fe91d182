"""The tokens after which a model generates are those after which it was trained."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.spec.named_templates import suggest_template_names
from titanrun.components.tokenizers.spec.tokenizer_files import load_vocab
from titanrun.recipe.resolving.validation_levels import validate_file

CHAT = "{%- for m in messages %}{{ '<' + m.role + '>' + SPACE + m.content + '\\n' }}{%- endfor %}"
PROMPT = "{%- if add_generation_prompt %}{{ '<assistant>' + END }}{%- endif %}"
RULE = "reply-opening-has-its-tokens"


def find_warnings(folder: Path, template: str) -> list[str]:
    (folder / "mine.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        f"tokenizer: {{name: tiny, chat_template: {template}}}\n"
        "training: {dataset: tiny_chat, seq_len: 64}\n"
    )
    found = validate_file(str(folder / "mine.yaml"), [], level="environment", environment={})
    return [problem.message for problem in found.problems if problem.rule == RULE]


@pytest.mark.parametrize(
    ("space", "end", "is_told"), [(" ", " ", True), (" ", "", False), ("", "", False)]
)
def test_an_opening_that_ends_with_a_space_is_told_as_transformers_has_it(
    space: str, end: str, is_told: bool, tmp_path: Path
) -> None:
    text = CHAT.replace("SPACE", repr(space)) + PROMPT.replace("END", repr(end))
    (tmp_path / "mine.jinja").write_text(text)
    told = find_warnings(tmp_path, str(tmp_path / "mine.jinja"))
    assert len(told) == is_told
    assert not told or "opens a reply with '<assistant> '" in told[0]
    oracle = AutoTokenizer.from_pretrained(str(TinyTokenizerConfig().folder))
    asked, reply = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
    prompt = oracle.apply_chat_template(
        [asked], chat_template=text, add_generation_prompt=True, return_dict=True
    )["input_ids"]
    whole = oracle.apply_chat_template([asked, reply], chat_template=text, return_dict=True)
    assert (whole["input_ids"][: len(prompt)] != prompt) == is_told


@pytest.mark.parametrize(
    "name", ["null", *suggest_template_names(load_vocab(TinyTokenizerConfig().folder))]
)
def test_shipped_templates_open_replies_with_whole_tokens(name: str, tmp_path: Path) -> None:
    assert find_warnings(tmp_path, name) == []
