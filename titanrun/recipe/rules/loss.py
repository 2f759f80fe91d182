"""Rules about the loss."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import sources

LOSS = ("loss", "name")


@rule("loss-takes-weights")
def loss_takes_weights(run: Recipe) -> Iterator[Finding]:
    """Weights of roles and of messages count in cross_entropy, chunked_cross_entropy and mse: another loss would divide by them and not
    use them. Take one of these, or remove the weights."""
    for place, dataset in sources(run):
        if dataset.weighs_tokens and not run.loss.takes_weights:
            paths = tuple((*place, name) for name in ("turn_weights", "train_on"))
            message = f"loss '{run.loss.name}' does not know that some tokens weigh more than others"
            yield Finding(message, (*paths, LOSS), help="set loss: cross_entropy, or remove the weights")


@rule("chunks-need-the-head")
def chunks_need_the_head(run: Recipe) -> Iterator[Finding]:
    """A loss in chunks is computed within the output head. A pipeline's schedule takes whole logits from its last stage, and a soft cap
    bends logits behind the head: use cross_entropy."""
    if run.loss.pieces is None:
        return
    help = "use loss: cross_entropy"
    if run.parallelism.pipeline_parallel_degree > 1:
        message = f"{run.loss.name} is computed within the output head, and a pipeline hands whole logits to its loss"
        yield Finding(message, (LOSS, ("parallelism", "pipeline_parallel_degree")), help=help)
    if getattr(run.model, "logit_soft_cap", None) is not None:
        message = f"{run.loss.name} is computed within the output head, and model.logit_soft_cap bends logits behind it"
        yield Finding(message, (LOSS, ("model", "logit_soft_cap")), help=help)
