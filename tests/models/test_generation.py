"""Continuations with remembered keys and values, against full forward passes and transformers'
generate on the same weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from titanrun.models.shared.kv_cache import KeptText, use_kv_cache
from titanrun.models.shared.spec.family import load_family_module
from titanrun.training.decoding import Continuation, decode_step, generate, prefill
from titanrun.training.token_sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
PROMPTS = [[5, 9, 33, 2], [7], [11, 12, 13, 14, 15, 16, 17, 18, 19], [60, 3, 60, 3]]
NEW = 12
SHARP = {"init": {"linear_std": 0.2}}
EXPERTS = {
    "moe": {
        "num_experts": 8,
        "top_k": 3,
        "hidden_dim": 48,
        "num_shared_experts": 0,
        "score_func": "softmax",
        "route_norm": True,
        "route_scale": 1.0,
        "gate_bias": False,
        "score_before_experts": False,
        "num_expert_groups": None,
        "num_limited_groups": None,
        "load_balance_coeff": None,
    }
}

# what transformers' class has, where ours can do more
MORE: dict[str, dict[str, Any]] = {
    "qwen3_moe": EXPERTS,
    "deepseek_v3": {
        "latent_norm_eps": 1e-6,
        "moe": {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5},
    },
}


@pytest.fixture(params=["llama3", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4"])
def model(request: pytest.FixtureRequest) -> Any:
    family = request.param.removesuffix("_moe")
    make: Callable[..., Any] = request.getfixturevalue(family)
    config = make(**SHARP, **MORE.get(request.param, {}))
    built = config.load_builder()(config, seq_len=64)
    built.init_weights(torch.Generator().manual_seed(0))
    return built


def test_remembered_tokens_give_the_logits_of_a_whole_pass(model: Any) -> None:
    rows = [[*prompt, *range(20, 20 + NEW)] for prompt in PROMPTS]
    lengths_B = torch.tensor([len(prompt) for prompt in PROMPTS])
    with torch.no_grad():
        expected = [model(torch.tensor([row]))[0] for row in rows]
        with use_kv_cache(model, 40) as cache:
            found = [prefill(model, PROMPTS, lengths_B)]
            for step in range(NEW):
                found.append(
                    decode_step(
                        model,
                        cache,
                        [row[length + step] for row, length in zip(rows, lengths_B, strict=True)],
                        lengths_B + step,
                    )
                )
    for row, length in enumerate(lengths_B.tolist()):
        ours_TV = torch.stack([logits_BV[row] for logits_BV in found])
        torch.testing.assert_close(ours_TV, expected[row][length - 1 :], rtol=0, atol=1e-5)


def test_a_row_does_not_depend_on_the_rows_beside_it(model: Any) -> None:
    together = generate(model, PROMPTS, max_new_tokens=NEW, sampling=GREEDY)
    apart = [
        generate(model, [prompt], max_new_tokens=NEW, sampling=GREEDY)[0] for prompt in PROMPTS
    ]
    assert [found.tokens for found in together] == [found.tokens for found in apart]
    assert all(found.finish == "length" for found in together)


def test_the_likeliest_tokens_are_those_of_transformers(model: Any, tmp_path: Path) -> None:
    names = load_family_module(type(model.config), "huggingface")
    save_file(
        names.to_huggingface(model.config, model.state_dict()),
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "config.json").write_text(
        json.dumps(names.to_huggingface_config(model.config, "float32")), encoding="utf-8"
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    for prompt, found in zip(
        PROMPTS, generate(model, PROMPTS, max_new_tokens=NEW, sampling=GREEDY), strict=True
    ):
        given = torch.tensor([prompt])
        ids = theirs.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert found.tokens == ids[0, len(prompt) :].tolist()


@pytest.fixture
def small(llama3: Callable[..., Any]) -> Any:
    config = llama3(**SHARP)
    built = config.load_builder()(config, seq_len=64)
    built.init_weights(torch.Generator().manual_seed(0))
    return built


def test_draws_depend_on_the_seed_and_nothing_else(small: Any) -> None:
    def draw(seed: int) -> list[Continuation]:
        return generate(small, PROMPTS, max_new_tokens=NEW, sampling=SamplingParams(seed=seed))

    assert draw(1) == draw(1)
    assert [found.tokens for found in draw(1)] != [found.tokens for found in draw(2)]


def test_logprobs_are_those_of_a_whole_pass(small: Any) -> None:
    (found,) = generate(
        small, PROMPTS[:1], max_new_tokens=NEW, sampling=SamplingParams(temperature=2.0)
    )
    row = torch.tensor([[*PROMPTS[0], *found.tokens]])
    with torch.no_grad():
        logprobs_TV = small(row)[0].log_softmax(-1)[len(PROMPTS[0]) - 1 : -1]
    expected = logprobs_TV[torch.arange(NEW), torch.tensor(found.tokens)]
    assert found.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_it_ends_at_an_end_token_or_where_a_stop_says_so(small: Any) -> None:
    (whole,) = generate(small, PROMPTS[:1], max_new_tokens=NEW, sampling=GREEDY)
    ends = whole.tokens.index(whole.tokens[4]) + 1
    (cut,) = generate(
        small,
        PROMPTS[:1],
        max_new_tokens=NEW,
        sampling=GREEDY,
        eos_ids=frozenset({whole.tokens[4]}),
    )
    assert (cut.tokens, cut.finish) == (whole.tokens[:ends], "stop")
    (stopped,) = generate(
        small,
        PROMPTS[:1],
        max_new_tokens=NEW,
        sampling=GREEDY,
        should_stop=lambda tokens: len(tokens) == 3,
    )
    assert (stopped.tokens, stopped.finish) == (whole.tokens[:3], "stop")


def test_a_kept_beginning_gives_the_reply_of_a_whole_prompt(model: Any) -> None:
    """Turns of a conversation: longer prompts, another one in between, and a shorter one."""
    first = [5, 9, 33, 2, 60]
    kept, passes = KeptText(), []
    model.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].size(1)))

    def ask(prompt: list[int], *, kept: KeptText | None = None) -> Continuation:
        (found,) = generate(model, [prompt], max_new_tokens=6, sampling=GREEDY, kept=kept)
        return found

    said = ask(first, kept=kept).tokens
    second = [*first, *said, 11, 12, 13, 14, 15]
    for prompt, computed in (
        # the last token of a reply has no keys yet
        (second, 6),
        (second, 1),
        ([*first[:3], 50, 51, 52], 3),
        (first[:2], 1),
        ([7, 8, 9], 3),
    ):
        passes.clear()
        found = ask(prompt, kept=kept)
        assert passes[0] == computed
        expected = ask(prompt)
        assert found.tokens == expected.tokens
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
