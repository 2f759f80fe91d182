"""Data types of rollouts: prompts, completions, turns, groups, training samples."""

from dataclasses import asdict, dataclass, field, fields
from math import inf, isfinite
from typing import Any, Literal

RolloutStatus = Literal[
    "ongoing",
    "completed",
    "truncated_length",
    "truncated_prompt",
    "truncated_turns",
    "error_environment",
    "error_generator",
    "error_reward",
]
TRUNCATED_STATUSES: frozenset[str] = frozenset(
    {"truncated_length", "truncated_prompt", "truncated_turns"}
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt with its expected answer. `number` is its index in the dataset."""

    prompt: str
    answer: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Tokens to continue. `seed` determines the sampling, independent of other requests."""

    tokens: list[int]
    seed: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """Generated continuation of a prompt.

    Args:
        tokens: the token ids.
        logprobs: log softmax(logits / temperature)[token] of each token in fp32.
        finish: reason for the end.
        version: version of the oldest weights that generated a token.
        version_runs: each version of the weights with the index of its first token, if there were
            several.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    version: int
    version_runs: tuple[tuple[int, int], ...] = ()

    @property
    def versions(self) -> list[int]:
        """Version of the weights of each token."""
        runs = self.version_runs or ((0, self.version),)
        ends = [*(start for start, _ in runs[1:]), len(self.tokens)]
        return [
            version
            for (start, version), end in zip(runs, ends, strict=True)
            for _ in range(start, end)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. Non-finite log-probabilities are stored as None."""
        return {
            "tokens": self.tokens,
            "logprobs": [logprob if isfinite(logprob) else None for logprob in self.logprobs],
            "finish": self.finish,
            "version": self.version,
            "version_runs": self.version_runs,
        }


@dataclass(frozen=True, slots=True)
class Turn:
    """Completion with all tokens before it."""

    prompt: list[int]
    completion: Completion
    text: str


@dataclass(slots=True)
class Rollout:
    """One conversation about a prompt: sample `index` of group `group`.

    `reward` is None until it is scored, and if it cannot be scored. `gained` is the sum of the
    environment's rewards. `heard` holds the environment's observations.
    """

    group: int
    index: int
    question: Prompt
    turns: list[Turn] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    status: RolloutStatus = "ongoing"
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    gained: float = 0.0
    advantage: float = 0.0

    @property
    def id(self) -> str:
        """Name in logs."""
        return f"group={self.group}/rollout={self.index}"

    @property
    def last_completion_text(self) -> str:
        """Text of the last completion."""
        return self.turns[-1].text if self.turns else ""

    @property
    def num_completion_tokens(self) -> int:
        """Number of tokens in all completions."""
        return sum(len(turn.completion.tokens) for turn in self.turns)

    @property
    def oldest_version(self) -> int:
        """Version of the oldest weights that generated any completion."""
        return min((turn.completion.version for turn in self.turns), default=0)

    @property
    def has_mixed_versions(self) -> bool:
        """Whether several versions of the weights generated its completions."""
        runs = [turn.completion.version_runs for turn in self.turns]
        return any(runs) or len({turn.completion.version for turn in self.turns}) > 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "question": asdict(self.question),
            "heard": list(self.heard),
            "parts": dict(self.parts),
            "turns": [
                {
                    "prompt": turn.prompt,
                    "completion": turn.completion.to_dict(),
                    "text": turn.text,
                }
                for turn in self.turns
            ],
        }


def completion_from_dict(data: dict[str, Any]) -> Completion:
    """Build a completion from the plain data of a conversation."""
    return Completion(
        **{
            **data,
            "logprobs": [-inf if logprob is None else logprob for logprob in data["logprobs"]],
            "version_runs": tuple(map(tuple, data.get("version_runs", ()))),
        }
    )


def rollout_from_dict(data: dict[str, Any]) -> Rollout:
    """Build a rollout from `Rollout.to_dict` data."""
    turns = [
        Turn(turn["prompt"], completion_from_dict(turn["completion"]), turn["text"])
        for turn in data["turns"]
    ]
    return Rollout(**{**data, "question": Prompt(**data["question"]), "turns": turns})


@dataclass(slots=True)
class RolloutGroup:
    """Completions of one prompt. `policy_version` is the version when the group was admitted."""

    number: int
    policy_version: int
    rollouts: list[Rollout]

    @property
    def is_done(self) -> bool:
        """Whether all conversations have ended."""
        return all(rollout.status != "ongoing" for rollout in self.rollouts)

    @property
    def is_given_up(self) -> bool:
        """Whether the processes that generated it ended too often."""
        return any(rollout.status == "error_generator" for rollout in self.rollouts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "number": self.number,
            "born": self.policy_version,
            "rollouts": [rollout.to_dict() for rollout in self.rollouts],
        }


def rollout_group_from_dict(data: dict[str, Any]) -> RolloutGroup:
    """Build a group from `RolloutGroup.to_dict` data."""
    return RolloutGroup(
        data["number"], data["born"], [rollout_from_dict(each) for each in data["rollouts"]]
    )


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One sequence to learn from.

    All lists are as long as `tokens`. `mask` is True for tokens that the policy generated.
    """

    tokens: list[int]
    mask: list[bool]
    logprobs: list[float]
    advantage: float


def build_rollout_training_samples(rollout: Rollout) -> list[TrainingSample]:
    """Build the training sequences of a conversation.

    Turns form one sequence as long as each prompt starts with all tokens before it. Otherwise a new
    sequence starts.
    """
    samples: list[TrainingSample] = []
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for turn in rollout.turns:
        if turn.prompt[: len(tokens)] != tokens:
            samples.append(TrainingSample(tokens, mask, logprobs, rollout.advantage))
            tokens, mask, logprobs = [], [], []
        new = turn.prompt[len(tokens) :]
        said = turn.completion
        tokens = [*tokens, *new, *said.tokens]
        mask = [*mask, *[False] * len(new), *[True] * len(said.tokens)]
        logprobs = [*logprobs, *[0.0] * len(new), *said.logprobs]
    return (
        [*samples, TrainingSample(tokens, mask, logprobs, rollout.advantage)] if tokens else samples
    )
