"""Conversations as tokens, and back."""

from collections.abc import Callable
from typing import Any

from tests.rl.parts import said, tokenizer
from titanrun.components.tokenizers.chat_template import folder_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import tiny_tokenizer
from titanrun.rl.config import RlConfig
from titanrun.rl.renderer import PlainRenderer
from titanrun.worker.rl import build_renderer


def test_plain_prompts_are_followed_by_what_was_drawn_token_by_token() -> None:
    coder = tokenizer()
    talk = said("4", prompt="?")
    talk.heard = ["+"]
    tokens = PlainRenderer(coder).prompt(talk)
    assert tokens == [
        *talk.turns[0].prompt,
        *talk.turns[0].completion.tokens,
        *coder.encode("+", bos=False, eos=False),
    ]
    assert PlainRenderer(coder).text(talk.turns[0].completion.tokens) == "4"


def test_a_conversation_is_put_into_the_words_of_a_template() -> None:
    coder = tiny_tokenizer(TinyTokenizerConfig())
    config: dict[str, Any] = {"rewards": ["exact_match"]}
    plain = build_renderer(RlConfig.model_validate(config), coder)
    chat = build_renderer(
        RlConfig.model_validate({**config, "rollout": {"renderer": "chat"}}), coder
    )
    talk = said("four", prompt="two and two")
    talk.turns.clear()
    words: Callable[[list[int]], str] = coder.decode
    template = folder_template(coder.folder)
    expected = template.render([{"role": "user", "content": "two and two"}], with_reply_opened=True)
    assert chat.prompt(talk) == coder.encode(expected, bos=False, eos=False) != plain.prompt(talk)
    assert "two and two" in words(chat.prompt(talk))
    answer = coder.encode("four", bos=False, eos=True)
    assert chat.text(answer) == "four"


def test_a_second_answer_follows_the_first_in_the_templates_words() -> None:
    coder = tiny_tokenizer(TinyTokenizerConfig())
    chat = build_renderer(
        RlConfig.model_validate({"rewards": ["exact_match"], "rollout": {"renderer": "chat"}}),
        coder,
    )
    talk = said("four", prompt="two and two")
    talk.heard = ["sure?"]
    text = coder.decode(chat.prompt(talk))
    assert text.index("two and two") < text.index("four") < text.index("sure?")
