"""Rules about texts that the model writes while it is trained."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule

PROMPTS = ("metrics", "samples", "prompts")
SPLIT = ("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree")


@rule("samples-need-text")
def samples_need_text(run: Recipe) -> Iterator[Finding]:
    """Samples are texts: the recipe needs a tokenizer, and a model that titanrun generates with."""
    if not run.metrics.samples.prompts:
        return
    if run.tokenizer is None:
        yield Finding("samples are texts and there is no tokenizer", (PROMPTS, ("tokenizer",)), help="name a tokenizer")
    if "text generation" in run.model.lacks:
        message = f"titanrun does not generate with a {run.model.name} model"
        yield Finding(message, (PROMPTS, ("model", "name")), help="remove metrics.samples")


@rule("samples-need-whole-layers")
def samples_need_whole_layers(run: Recipe) -> Iterator[Finding]:
    """Samples are written with remembered keys and values, by ranks that have whole layers: tensor, pipeline, context and expert
    parallelism must be 1, and the model not compiled."""
    if not run.metrics.samples.prompts:
        return
    for name in SPLIT:
        if getattr(run.parallelism, name) > 1:
            message = f"samples are written by ranks with whole layers, and {name} is {getattr(run.parallelism, name)}"
            yield Finding(message, (PROMPTS, ("parallelism", name)), help="remove metrics.samples, and use titanrun generate")
    if run.compile.enable and "model" in run.compile.components:
        paths = (PROMPTS, ("compile", "enable"))
        yield Finding("samples are not written by a compiled model", paths, help="remove metrics.samples, and use titanrun generate")
