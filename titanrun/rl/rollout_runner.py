"""Multi-turn conversations between policy and environment, advanced one turn at a time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.chat_renderer import Renderer
from titanrun.rl.environments.environment_protocol import Environment, EnvironmentStepError
from titanrun.rl.fleet.step_clock import StepClock
from titanrun.rl.generators.generator_protocol import Generator
from titanrun.rl.rewards.reward_function import RewardFunction
from titanrun.rl.rollout_types import (
    Completion,
    GenerateRequest,
    Prompt,
    Rollout,
    RolloutGroup,
    RolloutStatus,
    Turn,
)


@dataclass(slots=True)
class RolloutRunner:
    """Runner of conversations.

    Collective: all ranks must call its methods and hold all conversations. Each rank generates
    completions for its part of the prompts.

    Args:
        generator: this rank's generator.
        environment: called by the first rank for all.
        reward_function: called by the first rank for all.
        renderer: converts conversations to tokens.
        samples_per_prompt: conversations per group.
        max_tokens: longest conversation.
        max_new_tokens: longest completion.
        seed: determines all sampling, together with group, sample index and turn.
        ranks: ranks that share the work.
        ranks_per_generator: number of consecutive ranks that share a generator, and so the prompts.
        clock: what the time of this rank goes to.
    """

    generator: Generator
    environment: Environment
    reward_function: RewardFunction
    renderer: Renderer
    samples_per_prompt: int
    max_tokens: int
    max_new_tokens: int
    seed: int
    ranks: RankGroup
    ranks_per_generator: int = 1
    clock: StepClock = field(default_factory=StepClock)

    def start_group(
        self,
        prompt: Prompt,
        *,
        group_number: int,
        policy_version: int,
        num_samples: int | None = None,
    ) -> RolloutGroup:
        """Create a group without any turns."""
        count = self.samples_per_prompt if num_samples is None else num_samples
        return RolloutGroup(
            group_number,
            policy_version,
            [Rollout(group_number, index, prompt) for index in range(count)],
        )

    def generate_turn(
        self, groups: Sequence[RolloutGroup], *, temperature: float | None = None
    ) -> None:
        """Generate a completion in every ongoing conversation and step the environment.

        Conversations that end are scored.
        """
        asked = [
            (rollout, self.renderer.render_prompt(rollout))
            for group in groups
            for rollout in group.rollouts
            if rollout.status == "ongoing"
        ]
        requests: list[GenerateRequest] = []
        answering: list[Rollout] = []
        for rollout, prompt in asked:
            tokens_left = min(self.max_new_tokens, self.max_tokens - len(prompt))
            if tokens_left < 1 or not prompt:
                rollout.status = "truncated_prompt"
            else:
                answering.append(rollout)
                seed = compute_sampling_seed(self.seed, rollout, len(rollout.turns))
                requests.append(GenerateRequest(prompt, seed, tokens_left))
        for rollout, request, completion in zip(
            answering, requests, self._generate(requests, temperature), strict=True
        ):
            text = self.renderer.decode(completion.tokens)
            rollout.turns.append(Turn(request.tokens, completion, text))
        self._step_environment(answering)
        ended = [rollout for rollout, _ in asked if rollout.status != "ongoing"]
        for rollout, (status, reward, parts) in zip(
            ended, self.ranks.broadcast_from_main(lambda: self._compute_rewards(ended)), strict=True
        ):
            rollout.status, rollout.reward, rollout.parts = status, reward, parts

    def collect_metrics(self, *, num_tokens: int) -> dict[str, float]:
        """Return no metrics: generation is part of the step."""
        return {}

    def close(self) -> None:
        """Release all resources."""
        self.environment.close()
        self.reward_function.close()
        self.generator.close()

    def _generate(
        self, requests: Sequence[GenerateRequest], temperature: float | None
    ) -> list[Completion]:
        """Generate a completion of each prompt.

        Prompts are interleaved over the copies of the generator, to balance long completions.
        """
        together = self.ranks_per_generator
        copy, count = self.ranks.rank // together, self.ranks.size // together
        shares = self.ranks.all_gather_results(
            lambda: self.generator.generate(requests[copy::count], temperature=temperature)
        )[::together]
        answers: list[Completion] = [
            shares[number % count][number // count] for number in range(len(requests))
        ]
        return answers

    def _step_environment(self, answering: Sequence[Rollout]) -> None:
        """Step the environment after each conversation's last completion.

        In multi-turn environments truncated completions end the conversation without a step.
        """
        whole = []
        for rollout in answering:
            if rollout.turns[-1].completion.finish == "length" and self.environment.max_turns > 1:
                rollout.status = "truncated_length"
            else:
                whole.append(rollout)
        for rollout, response in zip(
            whole, self.ranks.broadcast_from_main(lambda: self.environment.step(whole)), strict=True
        ):
            if isinstance(response, EnvironmentStepError):
                rollout.status = "error_environment"
                continue
            rollout.gained += response.reward
            if response.done:
                is_truncated = rollout.turns[-1].completion.finish == "length"
                rollout.status = "truncated_length" if is_truncated else "completed"
            elif len(rollout.turns) >= self.environment.max_turns:
                rollout.status = "truncated_turns"
            else:
                rollout.heard.append(response.text)

    def _compute_rewards(
        self, ended: Sequence[Rollout]
    ) -> list[tuple[RolloutStatus, float | None, dict[str, float]]]:
        self.reward_function.score(ended)
        return [(rollout.status, rollout.reward, rollout.parts) for rollout in ended]


def compute_sampling_seed(run_seed: int, rollout: Rollout, turn: int) -> int:
    """Return the seed of a completion, which follows from its place alone."""
    key = f"{run_seed}/{rollout.group}/{rollout.index}/{turn}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little")
