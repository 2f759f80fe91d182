"""Small parts that tests of RL are made of."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from titanrun.components.tokenizers.config import CharactersTokenizerConfig
from titanrun.components.tokenizers.huggingface import (
    HuggingFaceTokenizer,
    build_characters_tokenizer,
)
from titanrun.config import registry
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.chat_renderer import PlainRenderer
from titanrun.rl.environments.config import EnvironmentConfig
from titanrun.rl.rewards.config import RewardConfig
from titanrun.rl.rewards.reward_function import RewardFunction
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_types import Completion, GenerateRequest, Prompt, Rollout, Turn

# the smallest run that has everything: four answers to each of two prompts, two steps
TEXT = """
version: 1
name: tiny-rl
kind: rl
device: cpu
model: {name: llama3, flavor: null, vocab_size: 56, dim: 16, n_layers: 1, n_heads: 2, n_kv_heads: 1,
        head_dim: 8, max_seq_len: 64,
        norm_eps: 1.0e-5, tie_word_embeddings: false, attention: {mask: block_causal},
        rope: {theta: 10000.0, scaling: null},
        feed_forward: {hidden_dim: 32, multiple_of: 32, ffn_dim_multiplier: null}}
tokenizer: characters
optimizer: {lr: 1.0e-2}
lr_scheduler: {warmup_steps: 1}
training:
  dataset: {name: string_task, count: 64}
  local_batch_size: 1
  seq_len: 32
  steps: 2
  mixed_precision_param: float32
rl:
  rewards: [{name: char_share, characters: abcdefghijklm}]
  rollout: {prompts_per_step: 2, samples_per_prompt: 4}
  sampling: {max_new_tokens: 4}
  validation: {samples: 4}
metrics: {log_freq: 1}
"""


def tokenizer() -> HuggingFaceTokenizer:
    return build_characters_tokenizer(CharactersTokenizerConfig())


class Scripted:
    """A generator whose answer is a function of the prompt's text."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer, self.version, self.pending_batches = answer, 0, []
        self.tokenizer = tokenizer()

    def generate(
        self, requests: Sequence[GenerateRequest], *, temperature: float | None = None
    ) -> list[Completion]:
        self.pending_batches += requests
        found = []
        for request in requests:
            whole = self.tokenizer.encode(
                self.answer(self.tokenizer.decode(request.tokens)), add_bos=False, add_eos=True
            )
            tokens = whole[: request.max_new_tokens]
            found.append(
                Completion(
                    tokens,
                    [-0.5] * len(tokens),
                    "stop" if tokens == whole else "length",
                    self.version,
                )
            )
        return found

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        for _ in weights:
            pass
        self.version = version

    def close(self) -> None:
        """Nothing is held open."""


def environment(logs: Path, name: str, **options: Any) -> Any:
    config = registry.load_choice(EnvironmentConfig, name).model_validate({"name": name, **options})
    return config.load_builder()(config, logs=logs)


def reward(logs: Path, name: str, **options: Any) -> Any:
    config = registry.load_choice(RewardConfig, name).model_validate({"name": name, **options})
    return config.load_builder()(config, log=logs / "reward.log")


def said(*answers: str, prompt: str = "?", expected: str = "", gained: float = 0.0) -> Rollout:
    """A conversation in which the policy has given these answers."""
    coder = tokenizer()
    turns = [
        Turn([1], Completion(coder.encode(text, add_bos=False, add_eos=True), [], "stop", 0), text)
        for text in answers
    ]
    return Rollout(0, 0, Prompt(prompt, expected), turns=turns, gained=gained)


def rollouter(
    logs: Path, answer: Callable[[str], str], world: str = "single_turn", **options: Any
) -> RolloutRunner:
    settings = {
        "samples_per_prompt": 2,
        "max_tokens": 64,
        "max_new_tokens": 8,
        **options.pop("settings", {}),
    }
    rubric = options.pop("rubric", None) or RewardFunction(
        {"environment": (reward(logs, "environment"), 1.0)}
    )
    return RolloutRunner(
        generator=Scripted(answer),
        environment=environment(logs, world, **options),
        reward_function=rubric,
        renderer=PlainRenderer(tokenizer()),
        seed=0,
        ranks=RankGroup(),
        **settings,
    )


def write_recipe(folder: Path, text: str) -> str:
    """Write a recipe into the folder and give its path."""
    file = folder / "recipe.yaml"
    file.write_text(text)
    return str(file)
