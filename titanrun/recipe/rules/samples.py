"""Rules about texts that the model writes while it is trained."""

from collections.abc import Iterator

from titanrun.components.metrics.config import PictureSamplesConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule

PROMPTS = ("metrics", "samples", "prompts")
SPLIT = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
)


@rule("samples-need-text")
def samples_need_text(run: Recipe) -> Iterator[Finding]:
    """Samples are texts, but of a model of pictures: the recipe needs a tokenizer, and a model that titanrun generates with."""
    if not run.metrics.samples.prompts or run.model.takes == "images":
        return
    if run.tokenizer is None:
        yield Finding(
            "samples are texts and there is no tokenizer",
            (PROMPTS, ("tokenizer",)),
            help="name a tokenizer",
        )
    if "text generation" in run.model.lacks:
        message = f"titanrun does not generate with a {run.model.name} model"
        yield Finding(message, (PROMPTS, ("model", "name")), help="remove metrics.samples")


@rule("samples-of-their-kind")
def samples_of_their_kind(run: Recipe) -> Iterator[Finding]:
    """Chat templates are of texts, and metrics.samples.pictures is of models that draw: neither is set for the other kind."""
    samples = run.metrics.samples
    if not samples.prompts:
        return
    if run.model.takes == "images" and samples.chat:
        message = f"a {run.model.name} model draws pictures, which have no chat template"
        yield Finding(
            message, (("metrics", "samples", "chat"), ("model", "name")), help="use false"
        )
    if run.model.takes != "images" and samples.pictures != PictureSamplesConfig():
        message = f"a {run.model.name} model writes texts and draws no pictures"
        yield Finding(
            message,
            (("metrics", "samples", "pictures"), ("model", "name")),
            help="remove metrics.samples.pictures",
        )


@rule("samples-need-whole-layers")
def samples_need_whole_layers(run: Recipe) -> Iterator[Finding]:
    """Samples are written with remembered keys and values, by ranks that have whole layers: tensor, pipeline, context and expert
    parallelism must be 1, and the model not compiled."""
    if not run.metrics.samples.prompts:
        return
    for name in SPLIT:
        if getattr(run.parallelism, name) > 1:
            message = f"samples are written by ranks with whole layers, and {name} is {getattr(run.parallelism, name)}"
            yield Finding(
                message,
                (PROMPTS, ("parallelism", name)),
                help="remove metrics.samples, and use titanrun generate",
            )
    if run.compile.enable and "model" in run.compile.components:
        paths = (PROMPTS, ("compile", "enable"))
        yield Finding(
            "samples are not written by a compiled model",
            paths,
            help="remove metrics.samples, and use titanrun generate",
        )
