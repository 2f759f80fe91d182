"""Reward of a trained reward model.

Shapes: B conversations, T tokens of the longest one.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.recipe import is_reward_model
from titanrun.rl.rewards.config import ModelRewardConfig
from titanrun.rl.rollout_types import Rollout
from titanrun.worker.training_template import load_training_template
from titanrun.worker.weights.initial_weights import get_checkpoint, load_checkpoint_recipe
from titanrun.worker.weights.load_model import load_model
from titanrun.worker.weights.saved_tokenizer import use_saved_tokenizer

log = logging.getLogger(__name__)

Message = dict[str, str]
REWARDS = ("rl", "rewards")


class ModelReward:
    """Score of a conversation by the reward model of a checkpoint, in its own chat template.

    Conversations longer than the sequences that the reward model was trained on have no reward.

    Args:
        config: names the checkpoint.
        log: unused.
        device: device of the model.
    """

    def __init__(self, config: ModelRewardConfig, *, log: Path, device: torch.device) -> None:
        try:
            checkpoint = get_checkpoint(parse_storage_path(config.path), "checkpoint")
        except ProblemsFound as error:
            message = f"{config.path} is neither a checkpoint nor a run directory with one"
            hint = "use the run directory of a recipe with loss: reward"
            raise problem_error("checkpoint", message, path=REWARDS, hint=hint) from error
        recipe = use_saved_tokenizer(load_checkpoint_recipe(checkpoint), checkpoint.folder)
        if not is_reward_model(recipe):
            message = f"the model in {config.path} has no scalar head"
            hint = "use the run directory of a recipe with loss: reward"
            raise problem_error("checkpoint", message, path=REWARDS, hint=hint)
        assert isinstance(recipe.tokenizer, TokenizerConfig), "pairs need a tokenizer"
        tokenizer = recipe.tokenizer.load_builder()(recipe.tokenizer)
        assert isinstance(tokenizer, ChatTokenizer)
        self.tokenizer = tokenizer
        self.template = load_training_template(recipe)
        self.max_tokens = recipe.training.seq_len
        self.batch_size = config.batch_size
        self.model = load_model(
            recipe,
            {"checkpoint": str(checkpoint.folder)},
            seq_len=self.max_tokens,
            device=device,
        )

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the score of each conversation, None if it is too long."""
        texts = [self.template.render(list_messages(rollout)) for rollout in rollouts]
        tokens = [list(ids) for ids, _ in self.tokenizer.encode_with_offsets(texts)]
        fitting = [number for number, ids in enumerate(tokens) if len(ids) <= self.max_tokens]
        if len(fitting) < len(tokens):
            log.warning(
                "no reward for %d conversations longer than the reward model's %d tokens",
                len(tokens) - len(fitting),
                self.max_tokens,
            )
        scores: list[float | None] = [None] * len(tokens)
        # equal lengths share a batch
        fitting.sort(key=lambda number: len(tokens[number]))
        for start in range(0, len(fitting), self.batch_size):
            numbers = fitting[start : start + self.batch_size]
            values = compute_scores(self.model, [tokens[number] for number in numbers])
            for number, value in zip(numbers, values, strict=True):
                scores[number] = value
        return scores

    def close(self) -> None:
        """Release the model."""
        del self.model


def list_messages(rollout: Rollout) -> list[Message]:
    """Return the messages of a conversation, up to the last completion."""
    messages = [{"role": "user", "content": rollout.question.prompt}]
    for number, turn in enumerate(rollout.turns):
        if number:
            messages.append({"role": "user", "content": rollout.heard[number - 1]})
        messages.append({"role": "assistant", "content": turn.text})
    return messages


@torch.no_grad()
def compute_scores(model: nn.Module, conversations: Sequence[Sequence[int]]) -> list[float]:
    """Return the output of a scalar head at the last token of each conversation."""
    device = next(model.parameters()).device
    lengths_B = torch.tensor([len(ids) for ids in conversations], device=device)
    tokens_BT = torch.zeros(len(conversations), int(lengths_B.max()), dtype=torch.int64)
    for row_T, ids in zip(tokens_BT, conversations, strict=True):
        row_T[: len(ids)] = torch.tensor(ids)
    # tokens do not see the padding behind them
    scores_BT1: Tensor = model(tokens_BT.to(device))
    last_B1 = (lengths_B - 1).unsqueeze(1)
    values: list[float] = scores_BT1.squeeze(-1).float().gather(1, last_B1).squeeze(1).tolist()
    return values
