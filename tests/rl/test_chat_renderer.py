"""Conversations as tokens, and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.rl.parts import said, tokenizer
from titanrun.components.tokenizers.chat_template import load_folder_chat_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer, build_tiny_tokenizer
from titanrun.components.tokenizers.spec.tokenizer_files import open_tokenizer_folder
from titanrun.rl.chat_renderer import PlainRenderer
from titanrun.rl.config import RlConfig
from titanrun.worker.build.build_rollouts import build_renderer, find_completion_end_ids


def test_plain_prompts_are_followed_by_what_was_drawn_token_by_token() -> None:
    coder = tokenizer()
    talk = said("4", prompt="?")
    talk.heard = ["+"]
    tokens = PlainRenderer(coder).render_prompt(talk)
    assert tokens == [
        *talk.turns[0].prompt,
        *talk.turns[0].completion.tokens,
        *coder.encode("+", add_bos=False, add_eos=False),
    ]
    assert PlainRenderer(coder).decode(talk.turns[0].completion.tokens) == "4"


def test_a_conversation_is_put_into_the_words_of_a_template() -> None:
    coder = build_tiny_tokenizer(TinyTokenizerConfig())
    config: dict[str, Any] = {"rewards": ["exact_match"]}
    plain = build_renderer(RlConfig.model_validate(config), coder)
    chat = build_renderer(
        RlConfig.model_validate({**config, "rollout": {"renderer": "chat"}}), coder
    )
    talk = said("four", prompt="two and two")
    talk.turns.clear()
    words: Callable[[list[int]], str] = coder.decode
    template = load_folder_chat_template(coder.folder)
    expected = template.render(
        [{"role": "user", "content": "two and two"}], add_generation_prompt=True
    )
    assert (
        chat.render_prompt(talk)
        == coder.encode(expected, add_bos=False, add_eos=False)
        != plain.render_prompt(talk)
    )
    assert "two and two" in words(chat.render_prompt(talk))
    answer = coder.encode("four", add_bos=False, add_eos=True)
    assert chat.decode(answer) == "four"


def test_a_second_answer_follows_the_first_in_the_templates_words() -> None:
    coder = build_tiny_tokenizer(TinyTokenizerConfig())
    chat = build_renderer(
        RlConfig.model_validate({"rewards": ["exact_match"], "rollout": {"renderer": "chat"}}),
        coder,
    )
    talk = said("four", prompt="two and two")
    talk.heard = ["sure?"]
    text = coder.decode(chat.render_prompt(talk))
    assert text.index("two and two") < text.index("four") < text.index("sure?")


def test_completions_of_a_chat_end_where_the_template_ends_a_reply(tmp_path: Path) -> None:
    folder = tmp_path / "assets"
    oracle = AutoTokenizer.from_pretrained(str(TinyTokenizerConfig().folder))
    oracle.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    oracle.chat_template = (
        "{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    )
    oracle.save_pretrained(str(folder))
    coder = HuggingFaceTokenizer(open_tokenizer_folder(folder))
    config: dict[str, Any] = {"rewards": ["exact_match"]}
    plain = RlConfig.model_validate(config)
    chat = RlConfig.model_validate({**config, "rollout": {"renderer": "chat"}})
    assert find_completion_end_ids(plain, coder) == {oracle.eos_token_id}
    end_id = oracle.convert_tokens_to_ids("<|im_end|>")
    assert find_completion_end_ids(chat, coder) == {oracle.eos_token_id, end_id}
