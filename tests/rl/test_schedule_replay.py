"""Recorded completions that are generated again, by generators that load weights in between."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rl.parts import TEXT
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.rl.generators.config import NativeConfig, SamplingConfig
from titanrun.rl.generators.generator_protocol import (
    GenerationLog,
    GeneratorProcessConfig,
    GeneratorResources,
    WeightUpdate,
    WeightUpdates,
)
from titanrun.rl.generators.native_generator import NativeGenerator
from titanrun.rl.rollout_runner import compute_sampling_seed
from titanrun.rl.rollout_types import GenerateRequest, Prompt, Rollout, RolloutGroup, Turn
from titanrun.rl.schedule_record import ScheduleRecorder, TakeKey, read_generation
from titanrun.rl.schedule_replay import ScheduleRegeneration
from titanrun.worker.build.build_rollouts import clone_policy_model

CPU = torch.device("cpu")
SEED = 11
VERSIONS = range(4)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(TEXT)
    return load_resolved_text(
        resolve_recipe(str(file), ["training.seq_len=64"], environment={}).text
    )


@pytest.fixture(scope="module")
def weights(recipe: Recipe) -> list[dict[str, Tensor]]:
    """Weights of each version, which differ."""
    state = clone_policy_model(recipe, CPU, torch.float32).state_dict()
    return [
        {name: tensor * (1 + 0.1 * version) for name, tensor in state.items()}
        for version in VERSIONS
    ]


Build = Callable[..., NativeGenerator]


@pytest.fixture(scope="module")
def build(recipe: Recipe) -> Build:
    def make(
        resets_cache: bool,
        take: Callable[[], WeightUpdate | None] = lambda: None,
        log: GenerationLog | None = None,
    ) -> NativeGenerator:
        resources = GeneratorResources(
            build_model=lambda is_split: clone_policy_model(recipe, CPU, torch.float32),
            sampling=SamplingConfig(),
            end_ids=frozenset({0}),
            encode=lambda text: [],
            build_working_weights=lambda model: WorkingWeights(
                model, get_precision("float32", "float32")
            ),
            process_config=GeneratorProcessConfig("", "float32", 64, Path("generator.log"), 0),
            updates=WeightUpdates(take, resets_cache),
            log=log,
        )
        return NativeGenerator(NativeConfig(batch_size=3), resources=resources)

    return make


class Weights:
    """An engine, as far as it gives weights of its version."""

    def __init__(self, weights: list[dict[str, Tensor]]) -> None:
        self.weights, self.policy_version = weights, 0

    def state_dict_stream(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights[self.policy_version].items()


def build_group(number: int) -> RolloutGroup:
    rollouts = [Rollout(number, index, Prompt("?", "!")) for index in range(2)]
    return RolloutGroup(number, 0, rollouts)


def continue_groups(generator: NativeGenerator, groups: Sequence[RolloutGroup]) -> None:
    """Add a turn to each conversation."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    requests = [
        GenerateRequest(
            [1 + rollout.group, 2 + rollout.index, 3][: 2 + rollout.index],
            compute_sampling_seed(SEED, rollout, len(rollout.turns)),
            40,
        )
        for rollout in rollouts
    ]
    for rollout, request, completion in zip(
        rollouts, requests, generator.generate(requests), strict=True
    ):
        rollout.turns.append(Turn(request.tokens, completion, ""))


def record_run(
    folder: Path, build: Build, weights: list[dict[str, Tensor]], kv_on_update: str
) -> list[RolloutGroup]:
    """Record two generators, of which one loads weights in the middle of completions."""
    recorder, logs = ScheduleRecorder(folder), [GenerationLog(), GenerationLog()]
    updates = iter([None, WeightUpdate(weights[1].items(), 1), None, None])
    resets = kv_on_update == "reset"
    busy = build(resets, lambda: next(updates, None), logs[0])
    calm = build(resets, log=logs[1])
    groups = [build_group(number) for number in range(3)]
    recorder.write("open", version=0, threads=1, kv_on_update=kv_on_update)
    busy.load(weights[0].items(), version=0)
    calm.load(weights[0].items(), version=0)
    continue_groups(busy, groups[:2])
    # validation at a temperature of its own leaves nothing
    calm.generate([GenerateRequest([5], 1, 3)], temperature=0.5)
    calm.load(weights[2].items(), version=2)
    continue_groups(calm, groups[2:])
    continue_groups(calm, groups[:1])
    for number, log in enumerate(logs):
        for batch in log.pop():
            recorder.write("generate", generator=number, **batch)
    recorder.write_take(TakeKey(3, 0), groups)
    return groups


def replay(
    folder: Path, build: Build, weights: list[dict[str, Tensor]], *, versions: Sequence[int]
) -> ScheduleRegeneration:
    engine: Any = Weights(weights)
    regeneration = ScheduleRegeneration(
        folder=folder,
        build_generator=build,
        seed=SEED,
        dtype=torch.float32,
        parameter_names=frozenset(),
        ranks=RankGroup(),
    )
    for version in versions:
        engine.policy_version = version
        regeneration.advance(engine)
        # without an update nothing is sent
        regeneration.advance(engine)
    return regeneration


@pytest.mark.parametrize("kv_on_update", ["reset", "keep"])
def test_completions_are_generated_again_with_the_weights_of_each_token(
    tmp_path: Path, build: Build, weights: list[dict[str, Tensor]], kv_on_update: str
) -> None:
    groups = record_run(tmp_path, build, weights, kv_on_update)
    completions = [each.turns[0].completion for each in groups[0].rollouts]
    assert any(each.versions[0] == 0 and each.versions[-1] == 1 for each in completions)
    replay(tmp_path, build, weights, versions=VERSIONS).check(groups)
    # other weights write something else
    with pytest.raises(ProblemsFound, match=r"token [0-9]+ of turn 0 of group=0/rollout=0, "):
        replay(tmp_path, build, weights[::-1], versions=VERSIONS).check(groups)


def test_the_place_of_a_changed_token_is_named(
    tmp_path: Path, build: Build, weights: list[dict[str, Tensor]]
) -> None:
    groups = record_run(tmp_path, build, weights, "reset")
    turn = groups[2].rollouts[1].turns[0]
    tokens = list(turn.completion.tokens)
    tokens[4] = (tokens[4] + 1) % 56
    changed = replace(turn, completion=replace(turn.completion, tokens=tokens))
    groups[2].rollouts[1].turns[0] = changed
    with pytest.raises(ProblemsFound) as error:
        replay(tmp_path, build, weights, versions=VERSIONS).check(groups)
    message = error.value.problems[0].message
    assert message.startswith(
        "token 4 of turn 0 of group=2/rollout=1, taken at policy version 3, differs: "
        f"{tokens[4]} with log-probability "
    )
    # a bit of a log-probability is a difference, too
    logprobs = list(turn.completion.logprobs)
    logprobs[2] = math.nextafter(logprobs[2], 0.0)
    groups[2].rollouts[1].turns[0] = replace(
        turn, completion=replace(turn.completion, logprobs=logprobs)
    )
    with pytest.raises(ProblemsFound, match="token 2 of turn 0 of group=2/rollout=1"):
        replay(tmp_path, build, weights, versions=VERSIONS).check(groups)
    groups[2].rollouts[1].turns[0] = replace(turn, prompt=[*turn.prompt, 9])
    with pytest.raises(ProblemsFound, match="the prompt of turn 0 of group=2/rollout=1"):
        replay(tmp_path, build, weights, versions=VERSIONS).check(groups)


def test_what_was_not_recorded_cannot_be_generated_again(
    tmp_path: Path, build: Build, weights: list[dict[str, Tensor]]
) -> None:
    groups = record_run(tmp_path, build, weights, "reset")
    # the second generator gets weights that it does not wait for
    with pytest.raises(ProblemsFound, match="does not say how turn 0 of group=2/rollout=0"):
        replay(tmp_path, build, weights, versions=(0, 1)).check(groups[2:])
    with pytest.raises(ProblemsFound, match="begins with policy version 0, but this run with 2"):
        replay(tmp_path, build, weights, versions=(2, 3))
    lines = (tmp_path / "schedule.jsonl").read_text().splitlines()
    (tmp_path / "schedule.jsonl").write_text(lines[-1] + "\n")
    with pytest.raises(ProblemsFound, match="does not say how the completions were generated"):
        replay(tmp_path, build, weights, versions=(0,))


def test_what_a_run_did_after_its_last_checkpoint_is_left_out(tmp_path: Path) -> None:
    recorder = ScheduleRecorder(tmp_path)

    def write(version: int, *loads: tuple[int, int]) -> None:
        recorder.write("generate", generator=0, version=version, requests=[], loads=loads)

    recorder.write("open", version=0, threads=2, kv_on_update="keep")
    write(0)
    write(1, (16, 2))
    write(2, (16, 3), (32, 4))
    write(4)
    recorder.write("open", version=2, threads=2, kv_on_update="keep")
    write(2)
    write(3)
    recorder.write("rollback", version=2)
    write(2, (16, 3))
    found = read_generation(tmp_path / "schedule.jsonl")
    assert (found.threads, found.resets_cache) == (2, False)
    assert [(batch.version, list(batch.loads)) for batch in found.batches] == [
        (0, []),
        (1, [(16, 2)]),
        (2, []),
        (2, [(16, 3)]),
    ]
    with (tmp_path / "schedule.jsonl").open("a") as file:
        file.write(json.dumps({"event": "generate", "generator": 0}) + "\n")
    with pytest.raises(ProblemsFound, match=r"line 11 of .* is damaged"):
        read_generation(tmp_path / "schedule.jsonl")
    (tmp_path / "schedule.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ProblemsFound, match=r"line 1 of .* is damaged"):
        read_generation(tmp_path / "schedule.jsonl")
