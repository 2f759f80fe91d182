"""Templates that are named where one does not render the messages."""

import json
from pathlib import Path

import pytest

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.recipe.resolving.validation_levels import validate_file

NO_SYSTEM = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{%- for message in messages %}{{ message.role + message.content + eos_token }}{% endfor %}
{%- if add_generation_prompt %}assistant{% endif %}
"""
RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel}
kind: sft
tokenizer: {name: huggingface, path: folder}
training: {dataset: {name: chat, path: chats.jsonl}, seq_len: 64, steps: 2}
"""


def find_hint(folder: Path, *roles: str, tokens: tuple[str, ...] = ()) -> str | None:
    """The help for a conversation of these roles, with a tokenizer that has further tokens."""
    own = folder / "folder"
    own.mkdir()
    tiny = TinyTokenizerConfig().folder
    data = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["vocab"] |= {token: 4000 + place for place, token in enumerate(tokens)}
    (own / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (own / "tokenizer_config.json").write_bytes((tiny / "tokenizer_config.json").read_bytes())
    (own / "chat_template.jinja").write_text(NO_SYSTEM)
    messages = [{"role": role, "content": f"text of {role}"} for role in roles]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    (folder / "mine.yaml").write_text(RECIPE)
    found = validate_file("mine.yaml", [], level="environment", environment={}).problems
    (hint,) = [each.hint for each in found if each.rule == "template-has-words"] or [None]
    return hint


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        ((), "alpaca"),
        (("<start_of_turn>", "<end_of_turn>"), "gemma3"),
        (("<|im_start|>", "<|im_end|>"), "chatml"),
    ],
)
def test_one_that_takes_system_messages_and_has_its_tokens_is_named(
    tokens: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_hint(tmp_path, "system", "user", "assistant", tokens=tokens) == (
        f"set tokenizer.chat_template: {name}, which renders them, or change the messages"
    )
    (tmp_path / "mine.yaml").write_text(
        RECIPE.replace("folder}", f"folder, chat_template: {name}}}")
    )
    found = validate_file("mine.yaml", [], level="environment", environment={}).problems
    assert "template-has-words" not in {problem.rule for problem in found}


def test_where_none_renders_them_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = find_hint(tmp_path, "system", "user", "assistant", "tool", "assistant")
    assert hint == (
        "change the messages, or name a template that supports them in tokenizer.chat_template"
    )
