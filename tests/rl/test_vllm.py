"""vLLM as the generator: what it says is what the model would, and a policy learns from it. `make
test-vllm` has the environment."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.rl.parts import TEXT, tokenizer
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config import registry
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.rl.generators.config import GeneratorConfig, SamplingConfig
from titanrun.rl.generators.generator_protocol import GeneratorProcessConfig, GeneratorResources
from titanrun.rl.rollout_types import Completion, GenerateRequest
from titanrun.worker.build.build_rollouts import clone_policy_model

pytestmark = pytest.mark.vllm

CPU = torch.device("cpu")
PLAIN = ["model.vocab_size=56", "model.max_seq_len=64", "training.seq_len=64"]
LLAMA = [*PLAIN, "model.dim=64", "model.head_dim=32", "model.n_layers=2"]


def other(family: str, flavor: str) -> str:
    """The override that makes the policy one of another family."""
    return f"model={{name: {family}, flavor: {flavor}, attention: {{mask: block_causal}}}}"


MODELS = {
    "llama3": ("native", LLAMA),
    "llama3, vLLM's": ("huggingface", LLAMA),
    "qwen3": ("native", [other("qwen3", "debugmodel")]),
    "qwen3, vLLM's": ("huggingface", [other("qwen3", "debugmodel")]),
    "qwen3 moe": ("native", [other("qwen3", "debugmodel_moe")]),
    "decoder": (
        "native",
        [
            "model={name: decoder, flavor: debugmodel, attention: {mask: block_causal, window: "
            "4, window_pattern: [window, full]}}"
        ],
    ),
}
Build = Callable[..., tuple[Any, nn.Module]]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made, numbers = [], count()

    def make(
        *overrides: str,
        sampling: dict[str, Any] | None = None,
        ends: tuple[int, ...] = (),
        **options: Any,
    ) -> tuple[Any, nn.Module]:
        (tmp_path / "recipe.yaml").write_text(TEXT)
        resolved = resolve_recipe(str(tmp_path / "recipe.yaml"), list(overrides), environment={})
        config = registry.load_choice(GeneratorConfig, "vllm").model_validate(
            {"name": "vllm", **options}
        )
        recipe = load_resolved_text(resolved.text)
        model = clone_policy_model(recipe, CPU, torch.float32)
        log = tmp_path / f"generator-{next(numbers)}.log"
        supplies = GeneratorResources(
            build_model=lambda is_split: model,
            sampling=SamplingConfig(**(sampling or {})),
            end_ids=frozenset(ends),
            encode=lambda text: tokenizer().encode(text, add_bos=False, add_eos=True),
            build_working_weights=lambda model: WorkingWeights(
                model, get_precision("float32", "float32")
            ),
            process_config=GeneratorProcessConfig(
                resolved.text, "float32", recipe.training.seq_len, log, 0
            ),
        )
        generator = config.load_builder()(config, resources=supplies)
        made.append(generator)
        generator.load(model.state_dict().items(), version=0)
        return generator, model

    yield make
    for generator in made:
        generator.close()


def requests(number: int = 6, *, new: int = 12) -> list[GenerateRequest]:
    random = torch.Generator().manual_seed(5)
    lengths = [1 + index * 3 % 11 for index in range(number)]
    return [
        GenerateRequest(
            torch.randint(1, 56, (length,), generator=random).tolist(), index, new - index
        )
        for index, length in enumerate(lengths)
    ]


def logprobs_of(
    model: nn.Module, request: GenerateRequest, said: Completion, *, temperature: float = 1.0
) -> list[float]:
    """What one pass over prompt and answer gives the tokens of the answer."""
    row = torch.tensor([request.tokens + said.tokens])
    all_logprobs = (model(row[:, :-1])[0].float() / temperature).log_softmax(-1)
    chosen = all_logprobs.gather(-1, row[0, 1:].unsqueeze(-1)).squeeze(-1)
    return chosen[len(request.tokens) - 1 :].tolist()


@pytest.mark.parametrize(("how", "overrides"), MODELS.values(), ids=MODELS)
def test_log_probabilities_are_those_of_the_policy(
    build: Build, how: str, overrides: list[str]
) -> None:
    generator, model = build(*overrides, model=how)
    for weights in range(2):
        for request, said in zip(requests(), generator.generate(requests()), strict=True):
            assert (
                len(said.tokens) == request.max_new_tokens
                and said.finish == "length"
                and said.version == weights
            )
            assert said.logprobs == pytest.approx(logprobs_of(model, request, said), abs=2e-5)
        # others, as after an update
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.02 * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(1)
                )
        generator.load(model.state_dict().items(), version=1)


def test_draws_are_those_of_the_recipe_and_of_the_seed(build: Build) -> None:
    generator, model = build(*LLAMA, sampling={"temperature": 0.7}, ends=(3,))
    asked = requests(32, new=40)
    first = generator.generate(asked)
    for request, said in zip(asked, first, strict=True):
        assert said.logprobs == pytest.approx(
            logprobs_of(model, request, said, temperature=0.7), abs=2e-5
        )
        assert (said.tokens[-1] == 3) == (said.finish == "stop") and 3 not in said.tokens[:-1]
    assert {said.finish for said in first} == {"stop", "length"}
    assert [said.tokens for said in generator.generate(asked)] == [said.tokens for said in first]
    likeliest = generator.generate(requests(), temperature=0.0)
    for request, said in zip(requests(), likeliest, strict=True):
        logits = model(torch.tensor([request.tokens + said.tokens[:-1]]))[0]
        assert said.tokens == logits[len(request.tokens) - 1 :].argmax(-1).tolist()


def test_weights_that_vllms_model_does_not_take_are_a_problem(build: Build) -> None:
    with pytest.raises(
        ProblemsFound, match=r"vLLM's model did not load weights for .*experts"
    ) as caught:
        build(other("qwen3", "debugmodel_moe"), model="huggingface")
    assert caught.value.problems[0].path == ("rl", "generator")


def test_a_policy_learns_from_what_vllm_says(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("char_share", run).returncode == 0
    lines = read_metrics(run / "metrics.jsonl")
    assert lines[-1]["validation/reward_mean"] - lines[0]["validation/reward_mean"] >= 0.8
    assert max(line.get("rl/logprob_diff_max", 0.0) for line in lines) < 1e-4
    assert (run / "logs" / "generator-rank0.log").stat().st_size > 0


def test_each_rank_has_a_vllm_of_its_own(tmp_path: Path) -> None:
    few = [
        "training.steps=3",
        "lr_scheduler.warmup_steps=1",
        "rl.rollout.prompts_per_step=4",
        "rl.validation.samples=8",
    ]
    done = train("char_share", tmp_path / "run", *few, "launch.nproc_per_node=2")
    assert done.returncode == 0, done.stderr
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 4
    assert {log.name for log in (tmp_path / "run" / "logs").glob("generator-*")} == {
        "generator-rank0.log",
        "generator-rank1.log",
    }


def test_a_vllm_that_dies_ends_the_run_with_its_last_words(build: Build) -> None:
    generator, _ = build(*LLAMA)
    os.kill(generator.subprocess._process.pid, signal.SIGKILL)
    with pytest.raises(ProblemsFound, match="vLLM ended") as caught:
        generator.generate(requests())
    assert "generator-0.log" in str(caught.value.problems[0].hint)


def train(name: str, run: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    """A run of a shipped recipe that vLLM answers in."""
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        str(shipped_recipes.get_shipped_recipe(name).path),
        f"dump_folder={run}",
        "rl.generator=vllm",
    ]
    return subprocess.run([*command, *overrides], capture_output=True, text=True, check=False)
