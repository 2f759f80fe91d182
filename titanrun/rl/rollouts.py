"""Conversations between the policy and an environment, all of them a turn further at a time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.distributed.agreement import Ranks
from titanrun.rl.environments.environment import Environment, EnvironmentFailed
from titanrun.rl.generators.generator import Generator
from titanrun.rl.renderer import Renderer
from titanrun.rl.rewards.rubric import Rubric
from titanrun.rl.samples import Completion, Group, Question, Request, Rollout, Turn


@dataclass(slots=True)
class Rollouter:
    """Holds conversations. Every rank calls it alike and has all of them; each rank answers its share of the prompts.

    Args:
        generator: of this rank.
        environment: asked by the first rank for all.
        rubric: asked by the first rank for all.
        renderer: conversations as tokens.
        samples_per_prompt: siblings of a group.
        max_tokens: of a conversation.
        max_new_tokens: of an answer.
        seed: decides every draw together with group, sibling and turn.
        ranks: who shares the work.
        ranks_per_copy: how many of them, one after the other, share a generator, and so answer the same prompts.
    """

    generator: Generator
    environment: Environment
    rubric: Rubric
    renderer: Renderer
    samples_per_prompt: int
    max_tokens: int
    max_new_tokens: int
    seed: int
    ranks: Ranks
    ranks_per_copy: int = 1

    def begin(
        self, question: Question, *, number: int, version: int, samples: int | None = None
    ) -> Group:
        """A group that nobody has said anything in."""
        count = self.samples_per_prompt if samples is None else samples
        return Group(number, version, [Rollout(number, index, question) for index in range(count)])

    def advance(self, groups: Sequence[Group], *, temperature: float | None = None) -> None:
        """One more answer in every conversation that goes on, and what the environment says to it; those that end are scored."""
        asked = [
            (rollout, self.renderer.prompt(rollout))
            for group in groups
            for rollout in group.rollouts
            if rollout.status == "ongoing"
        ]
        requests: list[Request] = []
        answering: list[Rollout] = []
        for rollout, prompt in asked:
            room = min(self.max_new_tokens, self.max_tokens - len(prompt))
            if room < 1 or not prompt:
                rollout.status = "truncated_prompt"
            else:
                answering.append(rollout)
                requests.append(Request(prompt, self._seed_of(rollout), room))
        for rollout, request, said in zip(
            answering, requests, self._answers(requests, temperature), strict=True
        ):
            rollout.turns.append(Turn(request.tokens, said, self.renderer.text(said.tokens)))
        self._react(answering)
        ended = [rollout for rollout, _ in asked if rollout.status != "ongoing"]
        for rollout, (status, reward, parts) in zip(
            ended, self.ranks.from_first(lambda: self._scores(ended)), strict=True
        ):
            rollout.status, rollout.reward, rollout.parts = status, reward, parts

    def close(self) -> None:
        """Ends what was started."""
        self.environment.close()
        self.rubric.close()
        self.generator.close()

    def _answers(self, requests: Sequence[Request], temperature: float | None) -> list[Completion]:
        """What follows each prompt: every copy of the generator answers some, so that none waits for another's long ones."""
        together = self.ranks_per_copy
        copy, count = self.ranks.rank // together, self.ranks.count // together
        shares = self.ranks.together(
            lambda: self.generator.generate(requests[copy::count], temperature=temperature)
        )[::together]
        answers: list[Completion] = [
            shares[number % count][number // count] for number in range(len(requests))
        ]
        return answers

    def _react(self, answering: Sequence[Rollout]) -> None:
        """What becomes of each conversation after its last answer; an environment never sees half of one."""
        whole = []
        for rollout in answering:
            if rollout.turns[-1].completion.finish == "length" and self.environment.max_turns > 1:
                rollout.status = "truncated_length"
            else:
                whole.append(rollout)
        for rollout, answered in zip(
            whole, self.ranks.from_first(lambda: self.environment.reply(whole)), strict=True
        ):
            if isinstance(answered, EnvironmentFailed):
                rollout.status = "error_environment"
                continue
            rollout.gained += answered.reward
            if answered.done:
                cut = rollout.turns[-1].completion.finish == "length"
                rollout.status = "truncated_length" if cut else "completed"
            elif len(rollout.turns) >= self.environment.max_turns:
                rollout.status = "truncated_turns"
            else:
                rollout.heard.append(answered.text)

    def _scores(self, ended: Sequence[Rollout]) -> list[tuple[str, float | None, dict[str, float]]]:
        self.rubric.score(ended)
        return [(rollout.status, rollout.reward, rollout.parts) for rollout in ended]

    def _seed_of(self, rollout: Rollout) -> int:
        key = f"{self.seed}/{rollout.group}/{rollout.index}/{len(rollout.turns)}"
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little")
