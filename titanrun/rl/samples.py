"""What a policy said, turn by turn, and the tokens that are learned from it."""

from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from typing import Any, Literal

Status = Literal[
    "ongoing",
    "completed",
    "truncated_length",
    "truncated_prompt",
    "truncated_turns",
    "error_environment",
    "error_reward",
]
TRUNCATED: frozenset[str] = frozenset({"truncated_length", "truncated_prompt", "truncated_turns"})


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with its expected answer; `number` of its row in the data."""

    prompt: str
    answer: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to be continued. `seed` decides the draws: the same whatever else is answered at the same time."""

    tokens: list[int]
    seed: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What follows a prompt: tokens, log softmax(logits / temperature)[token] in fp32 of each, why there is no more, and the weights'
    version."""

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """All tokens before an answer, and the answer."""

    prompt: list[int]
    completion: Completion
    text: str


@dataclass(slots=True)
class Rollout:
    """One conversation about a question: sibling `index` of group `group`.

    `reward` is None until it is scored, and where it could not be. `gained` is what the environment gave.
    """

    group: int
    index: int
    question: Question
    turns: list[Turn] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    status: Status = "ongoing"
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    gained: float = 0.0
    advantage: float = 0.0

    @property
    def id(self) -> str:
        """How logs call it."""
        return f"group={self.group}/rollout={self.index}"

    @property
    def answer(self) -> str:
        """What the policy said last."""
        return self.turns[-1].text if self.turns else ""

    @property
    def answer_tokens(self) -> int:
        """Tokens that the policy has written."""
        return sum(len(turn.completion.tokens) for turn in self.turns)

    @property
    def oldest_version(self) -> int:
        """Version of the oldest weights that wrote any of it."""
        return min((turn.completion.version for turn in self.turns), default=0)

    def as_data(self) -> dict[str, Any]:
        """Plain data for a checkpoint, in which a log-probability that is no number is None."""
        data = asdict(self)
        for turn in data["turns"]:
            said = turn["completion"]
            said["logprobs"] = [
                logprob if isfinite(logprob) else None for logprob in said["logprobs"]
            ]
        return data


def completion_of(data: dict[str, Any]) -> Completion:
    """A completion as a conversation's data holds it."""
    return Completion(
        **{
            **data,
            "logprobs": [-inf if logprob is None else logprob for logprob in data["logprobs"]],
        }
    )


def rollout_of(data: dict[str, Any]) -> Rollout:
    """What `as_data` was made of."""
    turns = [
        Turn(turn["prompt"], completion_of(turn["completion"]), turn["text"])
        for turn in data["turns"]
    ]
    return Rollout(**{**data, "question": Question(**data["question"]), "turns": turns})


@dataclass(slots=True)
class Group:
    """The answers to one prompt. `born`: the policy's version when it was admitted."""

    number: int
    born: int
    rollouts: list[Rollout]

    @property
    def is_done(self) -> bool:
        """Whether all conversations have ended."""
        return all(rollout.status != "ongoing" for rollout in self.rollouts)

    def as_data(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "number": self.number,
            "born": self.born,
            "rollouts": [rollout.as_data() for rollout in self.rollouts],
        }


def group_of(data: dict[str, Any]) -> Group:
    """What `as_data` was made of."""
    return Group(data["number"], data["born"], [rollout_of(each) for each in data["rollouts"]])


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One sequence to learn from. All lists are as long as `tokens`; `mask` says which tokens the policy wrote."""

    tokens: list[int]
    mask: list[bool]
    logprobs: list[float]
    advantage: float


def training_samples(rollout: Rollout) -> list[TrainingSample]:
    """The sequences of a conversation: one as long as each turn's prompt begins with all that was said before, else a further one."""
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
