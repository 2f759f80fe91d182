"""Rules about what answers a policy's prompts."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.models.shared.config import decided
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.rl.generators.config import VllmConfig

GENERATOR: DataPath = ("rl", "generator")
SAMPLING: DataPath = ("rl", "sampling")


@rule("split-generator-needs-ranks")
def split_generator_needs_ranks(run: Recipe) -> Iterator[Finding]:
    """rl.generator.tensor_parallel splits the generator as the policy is split: over the tensor-parallel ranks, of which there must be
    several. A policy whose experts are dealt to ranks has a whole generator on each."""
    if run.rl is None or not getattr(run.rl.generator, "tensor_parallel", False):
        return
    path, degree = ("rl", "generator", "tensor_parallel"), ("parallelism", "tensor_parallel_degree")
    if run.parallelism.tensor_parallel_degree == 1:
        message = "tensor_parallel has no effect: one rank has whole matrices"
        help = "set parallelism.tensor_parallel_degree, or remove it"
        yield Finding(message, (path, degree), help=help, code="no-effect", severity="warning")
    if run.parallelism.expert_parallel_degree > 1:
        paths = (path, ("parallelism", "expert_parallel_degree"))
        yield Finding(
            "a generator's experts are not dealt to ranks",
            paths,
            help="remove it, or use expert_parallel_degree: 1",
        )


@rule("vllm-knows-the-attention")
def vllm_knows_the_attention(run: Recipe) -> Iterator[Finding]:
    """rl.generator {name: vllm, model: native} computes attention with vLLM's kernels, which know grouped heads and windows. A decoder
    with latent attention, sinks or a soft cap is answered for by vLLM's own model of it, where it has one, or by native."""
    generator = None if run.rl is None else run.rl.generator
    if not isinstance(generator, VllmConfig) or generator.model != "native":
        return
    attention = getattr(run.model, "attention", None)
    for name in ("latent", "sinks", "soft_cap"):
        if hasattr(attention, name) and decided(getattr(attention, name)):
            paths = ((*GENERATOR, "model"), ("model", "attention", name))
            yield Finding(
                f"vLLM's attention has no {name.replace('_', ' ')}",
                paths,
                help="use rl.generator: native",
            )


@rule("vllm-compiles-its-own-models")
def vllm_compiles_its_own_models(run: Recipe) -> Iterator[Finding]:
    """rl.generator.enforce_eager: false compiles vLLM's model of an architecture; titanrun's runs as it is written."""
    generator = None if run.rl is None else run.rl.generator
    if (
        isinstance(generator, VllmConfig)
        and generator.model == "native"
        and not generator.enforce_eager
    ):
        paths = ((*GENERATOR, "enforce_eager"), (*GENERATOR, "model"))
        yield Finding(
            "vLLM does not compile titanrun's model",
            paths,
            help="use model: huggingface, or enforce_eager: true",
        )


@rule("vllm-logprobs-are-of-all-tokens")
def vllm_logprobs_are_of_all_tokens(run: Recipe) -> Iterator[Finding]:
    """A policy learns from log-probabilities of all tokens at the temperature. vLLM gives those before the temperature, or those after
    top_p and top_k: with a temperature other than 1 and one of the two it has none that fit."""
    if (
        run.rl is None
        or not isinstance(run.rl.generator, VllmConfig)
        or run.rl.sampling.temperature == 1
    ):
        return
    for name, plain in (("top_p", 1), ("top_k", None)):
        if getattr(run.rl.sampling, name) != plain:
            message = f"vLLM has no log-probabilities of all tokens at a temperature of {run.rl.sampling.temperature:g} under {name}"
            paths = ((*SAMPLING, name), (*SAMPLING, "temperature"), GENERATOR)
            yield Finding(message, paths, help="use temperature: 1.0, or rl.generator: native")
