"""RL runs from their recipes, as small as they can be."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.rl.parts import TEXT, tokenizer
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.trust import TRUST_ALL, TRUST_VARIABLE
from titanrun.distributed.quantized_weights import QuantizedWeight
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.recipe.rules.generators import ROUNDING_LIMIT
from titanrun.recipe.trainer_kinds import load_trainer_builder
from titanrun.training.hooks.timeout_hook import TimeoutHook
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build import build_step_hooks
from titanrun.worker.rank_main import main
from titanrun.worker.worker_job import rendezvous

Numbers = list[dict[str, float]]
TIMES = ("tps", "tflops", "memory_gib", "time/")


@pytest.fixture(scope="module", autouse=True)
def allowed_programs() -> Iterator[None]:
    """The user has allowed the programs that the recipes here name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, TRUST_ALL)
        yield


def write_run(folder: Path, *overrides: str) -> Path:
    """resolved.yaml of the tiny RL recipe with overrides."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / f"{folder.name}.yaml").write_text(TEXT)
    resolved = folder / "resolved.yaml"
    resolved.write_text(
        resolve_recipe(str(folder.parent / f"{folder.name}.yaml"), overrides, environment={}).text
    )
    return resolved


def numbers(folder: Path) -> Numbers:
    """What a run logged, without what the machine's speed decides."""
    lines = read_metrics(folder / "metrics.jsonl")
    return [
        {name: value for name, value in line.items() if not name.startswith(TIMES)}
        for line in lines
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains the tiny recipe with overrides, once for the same ones, and gives its folder."""
    parent = tmp_path_factory.mktemp("rl")

    @cache
    def train(*overrides: str, exit_code: int = 0) -> Path:
        folder = parent / f"run-{len(list(parent.iterdir()))}"
        assert main([str(write_run(folder, *overrides))]) == exit_code
        return folder

    return train


def kept(folder: Path) -> list[dict]:
    """The lines of rollouts.jsonl."""
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_a_run_asks_scores_learns_and_leaves_its_files(runs: Callable[..., Path]) -> None:
    lines = numbers(runs())
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[1]["rl/logprob_diff_max"] < 1e-5 and lines[1]["rl/ratio_mean"] == pytest.approx(
        1, abs=1e-5
    )
    assert "validation/reward_mean" in lines[0] and "validation/reward_mean" in lines[2]
    assert lines[1]["rl/age_max"] == 0
    answers = kept(runs())
    assert {line["step"] for line in answers} == {1, 2} and len(answers) == 8
    assert set(answers[0]) == {
        *(
            "step",
            "group",
            "rollout",
            "status",
            "reward",
            "rewards",
            "advantage",
            "version",
            "prompt",
            "expected",
            "answers",
            "heard",
        )
    }


def test_the_same_seed_is_the_same_run(runs: Callable[..., Path]) -> None:
    assert numbers(runs()) == numbers(runs("name=again"))


# in numbers of the log
CHANGES = {
    "rl.algorithm": "rl.algorithm=rloo",
    "rl.rewards": "rl.rewards=[{name: char_share, characters: xyz0123456789}]",
    "rl.rollout.prompts_per_step": "rl.rollout.prompts_per_step=1",
    "rl.rollout.samples_per_prompt": "rl.rollout.samples_per_prompt=3",
    "rl.rollout.max_tokens": "rl.rollout.max_tokens=6",
    "rl.rollout.truncation_reward": "rl.rollout.truncation_reward=-1.0",
    "rl.generator": "rl.generator={name: static, replies: [ab, xyz, c0, bd]}",
    "rl.sampling.temperature": "rl.sampling.temperature=0.5",
    "rl.sampling.top_p": "rl.sampling.top_p=0.5",
    "rl.sampling.top_k": "rl.sampling.top_k=3",
    "rl.sampling.max_new_tokens": "rl.sampling.max_new_tokens=3",
    "rl.validation.temperature": "rl.validation.temperature=3.0",
    "training.dataset.length": "training.dataset.length=5",
    "training.dataset.shuffle": "training.dataset.shuffle=false",
}


@pytest.mark.parametrize("change", [pytest.param(text, id=name) for name, text in CHANGES.items()])
def test_another_value_gives_other_numbers(runs: Callable[..., Path], change: str) -> None:
    assert numbers(runs(change, "training.steps=1")) != numbers(runs("training.steps=1"))


def test_groups_of_one_reward_are_left_out_unless_they_are_wanted(
    runs: Callable[..., Path],
) -> None:
    flat = "rl.rewards=[{name: regex, pattern: 'z'}]"
    kept_all = numbers(runs(flat, "rl.rollout.drop_zero_variance=false"))
    assert [line["loss"] for line in kept_all[1:]] == [0.0, 0.0] and kept_all[1][
        "rollout/flat_groups"
    ] == 2
    stopped = runs(flat, "rl.rollout.stop_after_dropped=2", exit_code=3)
    log = (stopped / "logs" / "rank-0.log").read_text()
    assert "no reward variance for 2 consecutive rounds of prompts" in log
    assert len(numbers(stopped)) == 1


def test_validation_comes_as_often_as_it_should(runs: Callable[..., Path]) -> None:
    often = numbers(runs("training.steps=3", "rl.validation.freq=1"))
    assert ["validation/reward_mean" in line for line in often] == [True] * 4
    assert ["validation/reward_mean" in line for line in numbers(runs("training.steps=3"))] == [
        True,
        False,
        False,
        True,
    ]
    assert not any(
        "validation/reward_mean" in line for line in numbers(runs("rl.validation.dataset=null"))
    )
    few, many = (
        numbers(runs(f"rl.validation={{samples: {count}, temperature: 2.0}}", "training.steps=1"))
        for count in (3, 7)
    )
    assert few[0] != many[0]


def test_what_the_policy_writes_is_kept_as_in_pretraining(runs: Callable[..., Path]) -> None:
    folder = runs(
        "metrics.samples={prompts: ['ab>'], freq: 1, max_new_tokens: 2}", "name=with-samples"
    )
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == {1, 2}


def test_ranks_wait_no_longer_than_they_should_after_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened: list[int] = []
    monkeypatch.setattr(build_step_hooks, "set_pg_timeout", shortened.append)
    resolved = write_run(tmp_path / "run", "comm.train_timeout_seconds=77")
    with (
        SignalRequests() as signals,
        load_trainer_builder("rl")(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals
        ) as loop,
    ):
        loop.hooks = (*loop.hooks, TimeoutHook(lambda: shortened.append(loop.state.step)))
        loop.train()
    assert shortened == [1]
    build_step_hooks.apply_train_timeout(load_resolved(resolved), cast(Any, object()))
    assert shortened == [1, 77]


def test_the_recorder_keeps_what_it_should(runs: Callable[..., Path]) -> None:
    more = kept(runs("rl.recorder={keep_extremes: 2, tokens: true, logprobs: true}"))
    assert len(more) == 16 and len(more[0]["tokens"][0]) == len(more[0]["logprobs"][0]) > 0
    assert not (runs("rl.recorder.keep_extremes=0") / "rollouts.jsonl").exists()
    for group in {(line["step"], line["group"]) for line in more}:
        rewards = [line["reward"] for line in more if (line["step"], line["group"]) == group]
        assert rewards == sorted(rewards, reverse=True)


@pytest.mark.parametrize("transport", ["shared_memory", "file", "dcp"])
def test_every_way_of_the_weights_gives_the_same_run(
    runs: Callable[..., Path], transport: str
) -> None:
    folder = runs(f"rl.sync.transport={transport}", "rl.sync.keep_versions=1")
    assert numbers(folder) == numbers(runs())
    left = sorted(path.name for path in (folder / "weights").iterdir())
    assert left == ([] if transport == "shared_memory" else ["version-2"])


SKIPS = {
    "fp32": (),
    "bfloat16": ("training.mixed_precision_param=bfloat16",),
    "tensorwise": (
        *("model.dim=64", "model.feed_forward.hidden_dim=128"),
        "converters=[{name: float8_linear, emulate: true, recipe_name: tensorwise}]",
    ),
}


@pytest.mark.parametrize("numerics", SKIPS)
def test_log_probabilities_are_verified_at_each_step(
    runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, numerics: str
) -> None:
    """One push that is left out stops the run, by the limits that a recipe has unless it says
    otherwise."""
    options = (*SKIPS[numerics], "rl.rollout.drop_zero_variance=false", "optimizer.lr=5.0e-2")
    assert [line["step"] for line in numbers(runs(*options))][-1] == 2
    from titanrun.rl.weight_sync.weight_sync import WeightSync

    deliver = WeightSync.sync_weights
    monkeypatch.setattr(
        WeightSync,
        "sync_weights",
        lambda self, engine: deliver(self, engine) if engine.policy_version == 0 else None,
    )
    stopped = runs(*options, "name=one-sync-skipped", exit_code=3)
    assert (
        "at step 2 the generator's log-probabilities differ from the policy's by "
        in (stopped / "logs" / "rank-0.log").read_text()
    )
    assert [line["step"] for line in numbers(stopped)] == [0, 1]


@pytest.mark.parametrize("field", ["max_logprob_diff", "max_logprob_diff_mean"])
def test_an_explicit_limit_is_taken_as_it_is(runs: Callable[..., Path], field: str) -> None:
    other = {"max_logprob_diff": "max_logprob_diff_mean"}.get(field, "max_logprob_diff")
    options = (
        *SKIPS["tensorwise"],
        *(f"rl.sync.{other}=null", "rl.rollout.drop_zero_variance=false"),
    )
    stopped = runs(*options, f"rl.sync.{field}=1.0e-7", exit_code=3)
    assert "but the limit is 1e-07" in (stopped / "logs" / "rank-0.log").read_text()
    assert runs(*options, f"rl.sync.{field}=null")


FLOAT8 = "{name: float8_linear, emulate: true, recipe_name: %s}"


@pytest.mark.parametrize(
    "converter",
    [
        FLOAT8 % "rowwise",
        FLOAT8 % "rowwise_with_gw_hp",
        "{name: mxfp8_linear, emulate: true}",
        *("qat", "{name: qat, scheme: int4_weight_only}"),
        *("fp32_lm_head", "lora", "qlora", "{name: qlora, base: int8}"),
    ],
)
def test_a_generator_computes_in_the_converted_form_of_its_policy(
    runs: Callable[..., Path], converter: str
) -> None:
    """Row A12 of the defect list."""
    for line in numbers(
        runs(
            *("model.dim=64", "model.feed_forward.hidden_dim=128", "rl.sync.max_logprob_diff=1e-5"),
            *("rl.rollout.drop_zero_variance=false", "rl.validation.dataset=null"),
            f"converters=[{converter}]",
            "checkpoint.enable=false",
        )
    ):
        assert line["rl/logprob_diff_max"] < 1e-5


def test_scales_of_a_whole_batch_differ_and_by_no_more_than_the_limit_that_a_rule_names(
    runs: Callable[..., Path],
) -> None:
    """Row A12 of the defect list: such a run stopped at its first step."""
    asked = (
        *("model.dim=64", "model.feed_forward.hidden_dim=128"),
        *("rl.rollout.drop_zero_variance=false", "rl.validation.dataset=null"),
        f"converters=[{FLOAT8 % 'tensorwise'}]",
    )
    kept = numbers(runs(*asked, f"rl.sync.max_logprob_diff={ROUNDING_LIMIT}"))
    assert len(kept) == 2 and all(1e-5 < line["rl/logprob_diff_max"] < 0.02 for line in kept)
    stopped = runs(*asked, "rl.sync.max_logprob_diff=1e-5", exit_code=3)
    assert (
        "max_logprob_diff: auto allows for bfloat16 and for converters"
        in (stopped / "logs" / "rank-0.log").read_text()
    )


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_a_generator_in_bf16_has_the_quantized_matrices_of_its_policy(
    tmp_path: Path, base: str
) -> None:
    """Row A12 of the defect list: with qlora and bfloat16 the generator could not be built."""
    resolved = write_run(
        tmp_path / "run",
        f"converters=[{{name: qlora, base: {base}}}]",
        *("model.dim=64", "model.feed_forward.hidden_dim=128"),
        *("training.mixed_precision_param=bfloat16", "rl.validation.dataset=null"),
        "checkpoint.enable=false",
    )
    with (
        SignalRequests() as signals,
        load_trainer_builder("rl")(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals
        ) as loop,
    ):
        loop.train()
        policy, generator = loop.engine.model, loop.source.runner.generator.model
    quantized = {
        name: weight
        for name, weight in generator.named_parameters()
        if isinstance(weight, QuantizedWeight)
    }
    assert quantized and {weight.dtype for weight in generator.parameters()} == {torch.bfloat16}
    for name, weight in quantized.items():
        own = policy.get_parameter(name)
        assert torch.equal(weight.codes, own.codes) and torch.equal(weight.scales, own.scales)


def test_answers_run_ahead_as_far_as_they_may(runs: Callable[..., Path]) -> None:
    ahead = numbers(runs("training.steps=5", "rl.schedule={target_offpolicy: 2, window: 0.5}"))
    ages = [line["rl/age_max"] for line in ahead[1:]]
    assert ages[:3] == [0, 1, 2] and max(ages) <= 3
    for line in ahead[1:]:
        shares = [line[f"rl/age_histogram/{age}"] for age in range(4)]
        assert sum(shares) == pytest.approx(1)
        assert shares[int(line["rl/age_max"])] > 0
    assert "rl/age_histogram/0" not in numbers(runs())[1]


def test_no_step_learns_from_a_completion_over_the_age_limit(
    runs: Callable[..., Path],
) -> None:
    schedule = "rl.schedule={target_offpolicy: 2, window: 0.5, max_age: %s}"
    free, limited = (runs("training.steps=8", schedule % age) for age in ("null", 1))
    assert max(line["rl/age_max"] for line in numbers(free)[1:]) > 1
    assert max(line["rl/age_max"] for line in numbers(limited)[1:]) == 1
    dropped = [line["rl/dropped_old"] for line in numbers(limited)[1:]]
    assert dropped[0] == 0 and sum(dropped) > 0
    assert not any(line["rl/dropped_old"] for line in numbers(free)[1:])


def test_a_correction_changes_what_older_completions_teach(runs: Callable[..., Path]) -> None:
    schedule = ("training.steps=4", "rl.schedule={target_offpolicy: 2, window: 0.5}")
    free = numbers(runs(*schedule))
    for correction in ("{name: truncated, max: 1.0}", "{name: mask, low: 0.99, high: 1.01}"):
        text = f"rl.algorithm={{name: grpo, clip_high: 9.0, correction: {correction}}}"
        corrected = numbers(runs(*schedule, text))
        shares = [line["rl/correction/clipped_share"] for line in corrected[1:]]
        # the first step learns from completions of its own weights
        assert shares[0] == 0 or "max" in correction
        assert 0 < max(shares) < 1
        assert corrected[2]["loss"] != free[2]["loss"]
        assert all(line["rl/correction/mean"] > 0 for line in corrected[1:])
    assert {line["rl/correction/clipped_share"] for line in free[1:]} == {0.0}


def test_a_wide_window_lets_the_quick_overtake(runs: Callable[..., Path]) -> None:
    # conversations of one to three turns, in pairs
    world = (
        "rl.environment={name: calculator, max_turns: 3}",
        "rl.generator={name: static, replies: ['1=', '2']}",
        "rl.rewards=[{name: length_penalty, span: 4}]",
        "rl.rollout={prompts_per_step: 2, samples_per_prompt: 1, drop_zero_variance: false}",
        "rl.algorithm=reinforce",
        "rl.validation.dataset=null",
        "training.steps=4",
    )
    narrow, wide = (
        [
            line["group"]
            for line in kept(runs(*world, f"rl.schedule={{target_offpolicy: 3, window: {share}}}"))
        ]
        for share in (0.0, 1.0)
    )
    assert narrow == sorted(narrow) and wide != sorted(wide)


def test_the_penalty_needs_the_weights_that_training_began_with(runs: Callable[..., Path]) -> None:
    held = numbers(runs("rl.reference=frozen_copy", "rl.algorithm={name: grpo, kl: {coef: 0.1}}"))
    assert held[1]["rl/kl"] == pytest.approx(0, abs=1e-6) and held[2]["rl/kl"] > 1e-6


def test_a_policy_without_its_adapters_is_what_training_began_with(
    runs: Callable[..., Path],
) -> None:
    held = ("converters=[{name: lora, rank: 2}]", "rl.algorithm={name: grpo, kl: {coef: 0.1}}")
    copied, switched_off = (
        numbers(runs(*held, f"rl.reference={name}")) for name in ("frozen_copy", "adapter_off")
    )
    assert copied[2]["rl/kl"] > 1e-6
    for one, other in zip(copied, switched_off, strict=True):
        assert other == pytest.approx(one, abs=1e-6)


def test_nothing_differs_by_a_bit_where_that_is_asked_for(runs: Callable[..., Path]) -> None:
    larger = (
        "model.n_layers=2",
        "training.local_batch_size=3",
        "training.dataset={name: arithmetic, count: 64, digits: 3}",
    )
    exact = numbers(
        runs("rl.batch_invariant=true", "debug.deterministic=true", "training.steps=5", *larger)
    )
    assert [line["rl/logprob_diff_max"] for line in exact[1:]] == [0.0] * 5


def test_a_run_that_is_stopped_goes_on_as_if_nothing_had_been(
    runs: Callable[..., Path], tmp_path: Path
) -> None:
    options = (
        "training.steps=6",
        "checkpoint={enable: true, interval: 3}",
        "rl.schedule={target_offpolicy: 1, window: 0.5}",
    )
    world = (
        "rl.environment={name: calculator, max_turns: 2}",
        "rl.algorithm=reinforce",
        "rl.rollout.drop_zero_variance=false",
    )
    whole = numbers(runs(*options, *world))
    resolved = write_run(tmp_path / "run", *options, *world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TITANRUN_STOP_AFTER", "3")
        assert main([str(resolved)]) in (0, 75)
    assert main([str(resolved)]) == 0
    assert numbers(tmp_path / "run") == whole
    assert "step 0       step 6" in (tmp_path / "run" / "logs" / "rank-0.log").read_text()


def test_a_reward_program_that_fails_costs_answers_and_in_the_end_the_run(
    runs: Callable[..., Path],
) -> None:
    odd = (
        "import sys, json\nfor i, line in enumerate(sys.stdin): print('oops' if i % 3 == 0 else "
        "json.dumps({'reward': i % 5}), flush=True)"
    )
    reward = json.dumps([{"name": "command", "command": [sys.executable, "-c", odd]}])
    counted = numbers(runs(f"rl.rewards={reward}", "rl.validation.dataset=null"))
    assert counted[1]["rollout/dropped_without_reward"] == 3
    dead = json.dumps(
        [{"name": "command", "command": [sys.executable, "-c", "exit(1)"], "max_restarts": 0}]
    )
    assert (
        "failed too often"
        in (runs(f"rl.rewards={dead}", exit_code=3) / "logs" / "rank-0.log").read_text()
    )


def test_each_program_has_a_log_of_its_own_and_what_it_died_of_is_said(
    runs: Callable[..., Path],
) -> None:
    def program(words: str) -> dict:
        body = (
            f"import sys, json\nsys.stderr.write('{words}\\n')\nif '{words}' == 'boom': exit(1)\n"
        )
        return {
            "name": "command",
            "command": [
                sys.executable,
                "-c",
                body + "for line in sys.stdin: print(json.dumps({'reward': 1}), flush=True)",
            ],
        }

    rewards = json.dumps([program("all is well"), {**program("boom"), "max_restarts": 0}])
    folder = runs(f"rl.rewards={rewards}", "rl.validation.dataset=null", exit_code=3) / "logs"
    assert (folder / "reward-command.log").read_text() == "all is well\n"
    assert (folder / "reward-command-2.log").read_text() == "boom\n"
    assert "reward-command-2.log: boom" in (folder / "rank-0.log").read_text()


def test_a_program_as_environment_that_fails_drops_conversations_or_gives_them_a_reward(
    runs: Callable[..., Path],
) -> None:
    command = [sys.executable, "-c", "exit(1)"]
    environment = {"name": "program", "command": command, "max_restarts": 40}
    world = f"rl.environment={json.dumps(environment)}"
    given = numbers(
        runs(
            world,
            "rl.generator={name: static, replies: [ab]}",
            "rl.rollout={error_reward: -0.5, prompts_per_step: 2, samples_per_prompt: 4, "
            "drop_zero_variance: false}",
            "training.steps=1",
            "rl.validation.dataset=null",
        )
    )
    assert given[0]["rollout/reward_mean"] == -0.5


def save_teacher(folder: Path) -> LlamaForCausalLM:
    """A larger model than the policy, with its vocabulary, saved by transformers."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=56,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model.double()


def test_a_teacher_judges_what_the_policy_wrote(
    runs: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On-policy distillation: the mean gap of a step is that of transformers in float64."""
    folder = tmp_path_factory.mktemp("teacher")
    model = save_teacher(folder)
    run = runs(
        "rl.algorithm={name: ref_kl, length_norm: token_mean}",
        "rl.reference=teacher",
        f"rl.teacher={folder}",
        "rl.validation.dataset=null",
        "rl.recorder={keep_extremes: 4, tokens: true, logprobs: true}",
        "rl.sampling.temperature=0.8",
        "rl.rollout.prompts_per_step=16",
        "optimizer.lr=5.0e-2",
        "training.steps=80",
    )
    gaps = [line["rl/reference_gap"] for line in numbers(run) if "rl/reference_gap" in line]
    expected = []
    for rollout in (one for one in kept(run) if one["step"] == 1):
        asked = tokenizer().encode(rollout["prompt"], add_bos=True, add_eos=False)
        (said,), (own,) = rollout["tokens"], rollout["logprobs"]
        with torch.no_grad():
            logits = model(torch.tensor([[*asked, *said]])).logits[0, len(asked) - 1 : -1] / 0.8
        theirs = logits.log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0]
        expected += (torch.tensor(own, dtype=torch.float64) - theirs).tolist()
    assert len(expected) > 200
    assert gaps[0] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    # the policy is far smaller than the teacher, and samples are few
    assert sum(gaps[-5:]) < 0.8 * sum(gaps[:5])
