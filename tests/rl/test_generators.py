"""What answers prompts: the same tokens whatever is answered beside them, as a whole pass would say
them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rl.parts import TEXT, tokenizer
from titanrun.components.data.document_ids import skip_document_ids
from titanrun.config import registry
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.distributed.rank_env import RankInfo, build_single_device_environment
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.integrations.vllm.vllm_server import build_vllm_arguments
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.rl.generators.batch_invariant import BatchInvariantForward
from titanrun.rl.generators.config import GeneratorConfig, SamplingConfig, VllmConfig
from titanrun.rl.generators.generator_protocol import (
    GeneratorProcessConfig,
    GeneratorResources,
    WeightUpdate,
    WeightUpdates,
)
from titanrun.rl.generators.vllm_generator import build_start_message
from titanrun.rl.rollout_types import GenerateRequest
from titanrun.training.decoding import generate
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.build.build_rollouts import (
    build_generator_resources,
    clone_policy_model,
    get_generator_dtype,
)
from titanrun.worker.worker_job import WorkerJob

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(TEXT)
    return load_resolved_text(
        resolve_recipe(str(file), ["training.seq_len=64", "model.n_layers=2"], environment={}).text
    )


@pytest.fixture(scope="module")
def build(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    def make(
        name: str = "native",
        *,
        recomputes: bool = False,
        sampling: dict[str, Any] | None = None,
        updates: WeightUpdates | None = None,
        **options: Any,
    ) -> Any:
        config = registry.load_choice(GeneratorConfig, name).model_validate(
            {"name": name, **options}
        )
        supplies = GeneratorResources(
            build_model=lambda is_split: clone_policy_model(recipe, CPU, torch.float32),
            sampling=SamplingConfig(**(sampling or {})),
            end_ids=frozenset({0}),
            encode=lambda text: tokenizer().encode(text, add_bos=False, add_eos=True),
            build_working_weights=lambda model: WorkingWeights(
                model, get_precision("float32", "float32")
            ),
            process_config=GeneratorProcessConfig(
                "", "float32", 64, tmp_path_factory.mktemp("logs") / "generator.log", 0
            ),
            batch_invariant_forward=BatchInvariantForward(4, 64, skip_document_ids)
            if recomputes
            else None,
            updates=updates,
        )
        return config.load_builder()(config, resources=supplies)

    return make


def requests(count: int = 8, *, new: int = 12) -> list[GenerateRequest]:
    random = torch.Generator().manual_seed(5)
    lengths = [1 + index * 3 % 11 for index in range(count)]
    return [
        GenerateRequest(
            torch.randint(1, 56, (length,), generator=random).tolist(), index, new - index
        )
        for index, length in enumerate(lengths)
    ]


def test_remembered_keys_say_what_whole_passes_say(build: Callable[..., Any]) -> None:
    cached, whole = build().generate(requests()), build(recomputes=True).generate(requests())
    for one, other in zip(cached, whole, strict=True):
        assert one.tokens == other.tokens and one.finish == other.finish
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_log_probabilities_are_those_of_one_pass_over_the_answer(
    build: Callable[..., Any], recipe: Recipe
) -> None:
    model = clone_policy_model(recipe, CPU, torch.float32)
    for request, said in zip(
        requests(), build(sampling={"temperature": 0.7}).generate(requests()), strict=True
    ):
        row = torch.tensor([request.tokens + said.tokens])
        logprobs = (
            (model(row[:, :-1])[0].float() / 0.7)
            .log_softmax(-1)
            .gather(-1, row[0, 1:].unsqueeze(-1))
            .squeeze(-1)
        )
        assert said.logprobs == pytest.approx(
            logprobs[len(request.tokens) - 1 :].tolist(), abs=1e-5
        )


@pytest.mark.parametrize("recomputes", [False, True], ids=["cached", "recomputed"])
def test_an_answer_does_not_depend_on_those_beside_it(
    build: Callable[..., Any], recomputes: bool
) -> None:
    together = build(recomputes=recomputes, batch_size=32).generate(requests(32, new=36))
    alone = build(recomputes=recomputes, batch_size=1).generate(requests(32, new=36))
    assert [said.tokens for said in together] == [said.tokens for said in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == (
            other.logprobs if recomputes else pytest.approx(other.logprobs, abs=1e-5)
        )


@pytest.mark.parametrize("resets_cache", [True, False])
def test_weights_that_come_during_an_answer_write_the_rest_of_it(
    build: Callable[..., Any], recipe: Recipe, resets_cache: bool
) -> None:
    models = {version: clone_policy_model(recipe, CPU, torch.float32) for version in (3, 4)}
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in models[4].parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    news = [None, WeightUpdate(list(models[4].state_dict().items()), 4), None]
    generator = build(updates=WeightUpdates(lambda: news.pop(0), resets_cache=resets_cache))
    generator.resources = replace(generator.resources, end_ids=frozenset())
    generator.load(models[3].state_dict().items(), version=3)
    asked = [GenerateRequest(each.tokens, each.seed, 52) for each in requests()]
    asked[0] = replace(asked[0], max_new_tokens=20)
    answers = generator.generate(asked)
    # bursts of 16 tokens: the second look finds them
    assert answers[0].versions == [3] * 20 and answers[0].version_runs == ()
    assert {each.version_runs for each in answers[1:]} == {((0, 3), (32, 4))}
    assert {each.version for each in answers} == {3} and not news
    found = []
    for request, said in zip(asked[1:], answers[1:], strict=True):
        row, first = torch.tensor([request.tokens + said.tokens]), len(request.tokens) - 1
        logprobs = {
            version: model(row[:, :-1])[0, first:]
            .float()
            .log_softmax(-1)
            .gather(-1, row[0, first + 1 :].unsqueeze(-1))
            .squeeze(-1)
            .tolist()
            for version, model in models.items()
        }
        expected = [logprobs[version][index] for index, version in enumerate(said.versions)]
        found += [abs(one - other) for one, other in zip(said.logprobs, expected, strict=True)]
        assert said.logprobs[:32] == pytest.approx(expected[:32], abs=1e-4)
    # old keys give something between the two
    assert max(found) < 1e-4 if resets_cache else max(found) > 1e-2, max(found)


def test_so_many_prompts_are_answered_at_once(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, sizes = build(batch_size=3), []
    answer = generator._generate_batch
    monkeypatch.setattr(
        generator,
        "_generate_batch",
        lambda given, **options: sizes.append(len(given)) or answer(given, **options),
    )
    generator.generate(requests())
    assert sizes == [3, 3, 2]


def test_answers_end_where_they_must(build: Callable[..., Any]) -> None:
    for request, said in zip(requests(), build().generate(requests()), strict=True):
        assert said.finish == ("stop" if said.tokens[-1] == 0 else "length")
        assert 0 not in said.tokens[:-1] and (
            said.finish == "stop" or len(said.tokens) == request.max_new_tokens
        )


def test_static_answers_are_given_in_turn(build: Callable[..., Any]) -> None:
    generator = build("static", replies=["ab", "c"])
    said = generator.generate([GenerateRequest([5], seed, 2) for seed in range(3)])
    assert [tokenizer().decode(each.tokens) for each in said] == ["ab", "c", "ab"]
    assert [each.finish for each in said] == ["length", "stop", "length"]


def test_a_policy_answers_what_text_generation_answers(
    build: Callable[..., Any], recipe: Recipe
) -> None:
    """Row A8 of the defect list: two functions sampled tokens, each in its own way."""
    sampling = SamplingParams(temperature=0.8, top_k=30, top_p=0.9, seed=11)
    prompts = [request.tokens for request in requests(4)]
    expected = generate(
        clone_policy_model(recipe, CPU, torch.float32),
        prompts,
        max_new_tokens=8,
        sampling=sampling,
        eos_ids=frozenset({0}),
    )
    policy = build(sampling={"temperature": 0.8, "top_k": 30, "top_p": 0.9})
    asked = zip(prompts, sampling.get_sequence_seeds(4), strict=True)
    said = policy.generate([GenerateRequest(prompt, seed, 8) for prompt, seed in asked])
    assert [each.tokens for each in said] == [each.tokens for each in expected]
    assert [each.finish for each in said] == [each.finish for each in expected]


@pytest.mark.parametrize("temperature", [0.0, 1e-38])
def test_a_temperature_next_to_zero_takes_the_likeliest_token(
    build: Callable[..., Any], recipe: Recipe, temperature: float
) -> None:
    model = clone_policy_model(recipe, CPU, torch.float32)
    said = build().generate(requests(2), temperature=temperature)
    for request, each in zip(requests(2), said, strict=True):
        row = torch.tensor([request.tokens + each.tokens])
        logprobs_TV = model(row[:, :-1])[0, len(request.tokens) - 1 :].log_softmax(-1)
        assert each.tokens == logprobs_TV.argmax(-1).tolist()
        assert each.logprobs == pytest.approx(logprobs_TV.amax(-1).tolist(), abs=1e-5)


def test_weights_are_taken_in_whole(build: Callable[..., Any], recipe: Recipe) -> None:
    generator, other = build(), clone_policy_model(recipe, CPU, torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    before = generator.generate(requests())
    generator.load(other.state_dict().items(), version=7)
    assert all(
        torch.equal(tensor, other.state_dict()[name])
        for name, tensor in generator.model.state_dict().items()
    )
    after = generator.generate(requests())
    assert [said.version for said in before + after] == [-1] * 8 + [7] * 8
    with pytest.raises(AssertionError, match="weights without"):
        generator.load([], version=8)


def test_a_batch_invariant_generator_computes_whole_rows(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    asked = [
        "rl.batch_invariant=true",
        "debug.deterministic=true",
        "training.mixed_precision_param=bfloat16",
    ]
    run = load_resolved_text(
        resolve_recipe(str(tmp_path / "recipe.yaml"), asked, environment={}).text
    )
    assert run.rl is not None
    assert (
        build_generator_resources(
            run,
            run.rl,
            WorkerJob(tmp_path / "resolved.yaml", "", RankInfo()),
            CPU,
            None,
            tokenizer(),
        ).batch_invariant_forward
        is not None
    )
    assert get_generator_dtype(run, run.rl) == torch.float32


def test_vllm_is_opened_with_what_the_recipe_says(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    run = load_resolved_text(
        resolve_recipe(
            str(tmp_path / "recipe.yaml"), ["rl.sampling.temperature=0.5"], environment={}
        ).text
    )
    assert run.rl is not None
    supplies = build_generator_resources(
        run,
        run.rl,
        WorkerJob(tmp_path / "resolved.yaml", "its text", RankInfo(rank=1)),
        CPU,
        None,
        tokenizer(),
    )
    config = VllmConfig(model="huggingface", batch_size=7, memory_share=0.5, enforce_eager=False)
    told = build_start_message(config, supplies)
    opened = build_vllm_arguments(told)
    assert (told["recipe"], told["model"], told["end_ids"]) == (
        "its text",
        "huggingface",
        [tokenizer().eos_id],
    )
    assert (opened["max_num_seqs"], opened["gpu_memory_utilization"], opened["enforce_eager"]) == (
        7,
        0.5,
        False,
    )
    assert (opened["dtype"], opened["max_model_len"], opened["logprobs_mode"]) == (
        "float32",
        32,
        "processed_logprobs",
    )
    assert supplies.process_config.log_file == tmp_path / "logs" / "generator-rank1.log"


def test_a_vllm_that_takes_too_long_is_a_problem(build: Callable[..., Any]) -> None:
    with pytest.raises(ProblemsFound, match=r"vLLM did not respond within 0\.01 seconds") as caught:
        build("vllm", timeout_seconds=0.01)
    assert caught.value.problems[0].path == ("rl", "generator")


def test_a_process_beside_a_rank_is_no_rank_and_has_its_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "MASTER_PORT": "1",
        "TITANRUN_QUIET": "1",
        "KEPT": "yes",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    variables = build_single_device_environment(1)
    assert variables["KEPT"] == "yes" and variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert not {"RANK", "LOCAL_RANK", "MASTER_PORT", "TITANRUN_QUIET"} & set(variables)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert build_single_device_environment(1)["CUDA_VISIBLE_DEVICES"] == "6"
