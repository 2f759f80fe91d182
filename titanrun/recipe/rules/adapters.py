"""Rules about low-rank adapters: what the rest of a recipe must be for them."""

from collections.abc import Iterator

from titanrun.components.converters.config import LoraConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.converters import listed
from titanrun.recipe.rules.ranks import at


@rule("adapters-come-last")
def adapters_come_last(run: Recipe) -> Iterator[Finding]:
    """Adapters stand beside modules as other converters left them, and those find no plain modules behind lora. List lora last."""
    adapted = None
    for path, converter in listed(run):
        if isinstance(converter, LoraConfig):
            adapted = path
        elif adapted is not None and not converter.of_experts:
            yield Finding(f"{converter.name} stands behind lora, and finds no plain modules there", (path, adapted), help="list lora last")


@rule("adapter-dropout-is-whole")
def adapter_dropout_is_whole(run: Recipe) -> Iterator[Finding]:
    """Dropout of adapters together with tensor parallelism is not built: ranks that share a row would have to leave out the same inputs.
    Set dropout to 0, or tensor_parallel_degree to 1."""
    for path, converter in listed(run):
        if isinstance(converter, LoraConfig) and converter.dropout and run.parallelism.tensor_parallel_degree > 1:
            message = "dropout of adapters together with tensor parallelism is not built in this version"
            places = ((*path, "dropout"), at("tensor_parallel_degree"))
            yield Finding(message, places, help="set dropout: 0, or tensor_parallel_degree: 1", code="not-built")


@rule("adapter-dropout-is-recomputed")
def adapter_dropout_is_recomputed(run: Recipe) -> Iterator[Finding]:
    """A layer that is computed again must leave out the same inputs, or its gradients are those of another one. Set
    activation_checkpoint.preserve_rng_state to true, or dropout to 0."""
    for path, converter in listed(run):
        if isinstance(converter, LoraConfig) and converter.dropout and not getattr(run.activation_checkpoint, "preserve_rng_state", True):
            message = "layers that are computed again would leave out other inputs of their adapters"
            places = ((*path, "dropout"), ("activation_checkpoint", "preserve_rng_state"))
            yield Finding(message, places, help="set activation_checkpoint.preserve_rng_state: true, or dropout: 0")
