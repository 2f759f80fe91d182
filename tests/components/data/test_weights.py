"""What roles and messages weigh in the loss of conversations."""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import log_softmax

from tests.components.data.test_chat_dataset import UNMARKED
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.chat_dataset import build_chat_dataset
from titanrun.components.data.config import MixtureDatasetConfig, TinyDatasetConfig
from titanrun.components.data.data_inspection import label_text_segments
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.mixture_dataset import build_mixture_dataset
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig, LossConfig, MseConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer, build_tiny_tokenizer
from titanrun.config.problems import Problem, ProblemsFound

Open = Callable[..., IndexedDataset]
TALK = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two", "weight": 0},
    {"role": "user", "content": "three", "weight": 2},
    {"role": "assistant", "content": "four", "weight": 0.25},
    {"role": "user", "content": "five"},
    {"role": "assistant", "content": "six"},
]


@pytest.fixture(scope="module")
def shipped() -> HuggingFaceTokenizer:
    return build_tiny_tokenizer(TinyTokenizerConfig())


@pytest.fixture
def opened(tmp_path: Path, shipped: HuggingFaceTokenizer) -> Open:
    """Writes conversations into a file and opens it."""

    def open_rows(
        *conversations: Any, template: str | None = None, **options: Any
    ) -> IndexedDataset:
        file = tmp_path / "chats.jsonl"
        key = "conversations" if options.get("layout") == "sharegpt" else "messages"
        file.write_text("".join(json.dumps({key: messages}) + "\n" for messages in conversations))
        if template is not None:
            (tmp_path / "template.jinja").write_text(template)
        config = ChatDatasetConfig(path=str(file), **options)
        tokenizer = copy(shipped)
        tokenizer.chat_template = None if template is None else str(tmp_path / "template.jinja")
        return build_chat_dataset(
            config, tokenizer=tokenizer, sample_length=97, cache_folder=tmp_path / "cache"
        )

    return open_rows


def weighed(row: np.ndarray, tokenizer: HuggingFaceTokenizer) -> list[tuple[str, float]]:
    """The text of tokens that weigh the same, one after the other, with what they weigh; what
    counts nothing is left out."""
    batch = TokenBatch.from_sequences(row[None])
    assert batch.weights is not None and torch.equal(batch.label_mask(), batch.weights > 0)
    found: list[tuple[list[int], float]] = []
    last = 0.0
    for token, weight in zip(batch.labels[0].tolist(), batch.weights[0].tolist(), strict=True):
        if weight and weight == last:
            found[-1][0].append(token)
        elif weight:
            found.append(([token], weight))
        last = weight
    return [
        (tokenizer._library.decode(ids, skip_special_tokens=False), weight) for ids, weight in found
    ]


def test_replies_weigh_what_their_message_says(opened: Open, shipped: HuggingFaceTokenizer) -> None:
    expected = [(" four<|end_of_text|>", 0.25), (" six<|end_of_text|>", 1.0)]
    assert weighed(opened(TALK, turn_weights="weight")[0], shipped) == expected
    turns = [
        {
            "from": {"user": "human", "assistant": "gpt"}[message["role"]],
            "value": message["content"],
            "w": message.get("weight"),
        }
        for message in TALK
    ]
    assert weighed(opened(turns, layout="sharegpt", turn_weights="w")[0], shipped) == expected
    marked = [{**message, "weight": message["content"] == "six"} for message in TALK]
    assert weighed(opened(marked, turn_weights="weight")[0], shipped) == expected[1:]
    assert (
        weighed(opened(TALK, turn_weights="weight", train_on="last_reply")[0], shipped)
        == expected[1:]
    )


def test_each_role_weighs_what_the_recipe_says(opened: Open, shipped: HuggingFaceTokenizer) -> None:
    said = [{"role": "system", "content": "be"}, *TALK[:2]]
    options = {"train_on": "roles", "template": UNMARKED}
    row = opened(said, **options, role_weights={"user": 0.5, "assistant": 2.0})[0]
    assert weighed(row, shipped) == [("<user>one<end>\n", 0.5), ("two<end>", 2.0)]
    row = opened(said, **options, role_weights={"system": 0.125})[0]
    assert [weight for _, weight in weighed(row, shipped)] == [0.125]
    tools = [{"role": role, "content": role} for role in ("developer", "tool", "user")]
    row = opened(tools, **options, role_weights={"developer": 3.0, "tool": 4.0})[0]
    assert [weight for _, weight in weighed(row, shipped)] == [3.0, 4.0]


def test_a_message_weighs_its_weight_times_that_of_its_role(
    opened: Open, shipped: HuggingFaceTokenizer
) -> None:
    row = opened(
        TALK,
        train_on="roles",
        role_weights={"user": 0.5, "assistant": 2.0},
        turn_weights="weight",
        template=UNMARKED,
    )[0]
    assert [weight for _, weight in weighed(row, shipped)] == [0.5, 1.0, 0.5, 0.5, 2.0]


def test_rows_of_a_mixture_without_weights_weigh_one(
    opened: Open, shipped: HuggingFaceTokenizer, tmp_path: Path
) -> None:
    opened(TALK)
    heavy = {"name": "chat", "path": str(tmp_path / "chats.jsonl"), "turn_weights": "weight"}
    sources = [
        {"dataset": heavy, "max_rows": 1},
        {"dataset": "tiny_chat"},
        {"dataset": TinyDatasetConfig()},
    ]
    config = MixtureDatasetConfig.model_validate({"sources": sources})
    rows = build_mixture_dataset(
        config, tokenizer=shipped, sample_length=97, cache_folder=tmp_path / "cache"
    )
    order = rows.compute_epoch_order(0, seed=None)[:30].tolist()
    batch = TokenBatch.from_sequences(np.stack([rows[index] for index in order]))
    of_source = torch.tensor([rows.get_source_index(index) for index in order])
    assert (
        batch.weights is not None
        and (batch.weights[of_source > 0][batch.loss_mask[of_source > 0]] == 1).all()
    )
    assert (batch.weights[of_source == 0] == 0.25).any() and batch.loss_mask[of_source == 2].all()


@pytest.mark.parametrize(
    "config",
    [
        CrossEntropyConfig(),
        CrossEntropyConfig(z_loss=0.1, label_smoothing=0.2),
        MseConfig(height=3.0),
    ],
)
def test_a_loss_counts_a_token_as_often_as_it_weighs(config: LossConfig) -> None:
    drawn = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 6, 11, generator=drawn, dtype=torch.float64)
    rows = torch.randint(11, (2, 7), generator=drawn)
    batch = TokenBatch.from_sequences(rows)
    batch.loss_mask[0, :2] = False
    loss = config.load_builder()(config)
    whole = TokenBatch(
        batch.tokens, batch.labels, None, batch.loss_mask, weights=torch.rand(2, 6, generator=drawn)
    )
    alone = torch.zeros(2, 6, dtype=torch.float64)
    for row in range(2):
        for place in range(6):
            only = torch.zeros(2, 6, dtype=torch.bool)
            only[row, place] = batch.loss_mask[row, place]
            alone[row, place] = loss(
                logits, TokenBatch(batch.tokens, batch.labels, None, only)
            ).double()
    assert loss(logits, whole).item() == pytest.approx(
        (alone * whole.weights).sum().item(), rel=1e-5
    )
    assert whole.num_valid_tokens().item() == pytest.approx(
        (whole.weights * batch.loss_mask).sum().item(), rel=1e-6
    )
    if config == CrossEntropyConfig():
        by_hand = (
            -log_softmax(logits, -1).gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)
            * whole.weights
            * batch.loss_mask
        )
        assert loss(logits, whole).item() == pytest.approx(by_hand.sum().item(), rel=1e-6)


def test_samples_say_what_tokens_weigh(opened: Open, shipped: HuggingFaceTokenizer) -> None:
    found = label_text_segments(opened(TALK, turn_weights="weight")[0], shipped)
    assert [text for kind, text in found if kind == "weight"] == ["0.25", "1"]


def problem_of(opened: Open, *conversations: Any, **options: Any) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        opened(*conversations, **options)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.hint
    return problem


@pytest.mark.parametrize("weight", [-1, "2", float("nan"), float("inf"), [1]])
def test_what_is_no_weight_is_told_with_its_message(weight: object, opened: Open) -> None:
    said = [TALK[0], {"role": "assistant", "content": "two", "weight": weight}]
    problem = problem_of(opened, TALK, said, turn_weights="weight")
    assert "line 2, message 2," in problem.message and "not a weight" in problem.message


def test_weights_without_an_effect_are_told(opened: Open) -> None:
    problem = problem_of(opened, TALK, turn_weights="wieght")
    assert problem.path == ("turn_weights",) and "no message has a 'wieght'" in problem.message
    assert (
        "no message with a nonzero loss weight"
        in problem_of(opened, TALK[:2], turn_weights="weight").message
    )
    once = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    assert "marks 1 spans" in problem_of(opened, TALK, turn_weights="weight", template=once).message


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"role_weights": {"user": 1.0}}, "no effect with train_on: replies"),
        ({"train_on": "roles"}, "needs a weight"),
        ({"train_on": "all", "turn_weights": "weight"}, "counts the whole text"),
        ({"train_on": "roles", "role_weights": {"user": 0.0}}, "greater than 0"),
        ({"train_on": "roles", "role_weights": {"bot": 1.0}}, "bot"),
    ],
)
def test_weights_that_contradict_the_rest_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ChatDatasetConfig(path="chats.jsonl", **options)
