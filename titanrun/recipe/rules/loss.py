"""Rules about the loss."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import sources

LOSS = ("loss", "name")
LEARNED_BY = "loss: multi_token_cross_entropy, or "
DEPTH = ("model", "num_mtp_layers")


@rule("loss-takes-weights")
def loss_takes_weights(run: Recipe) -> Iterator[Finding]:
    """Weights of roles and of messages count in cross_entropy, chunked_cross_entropy and mse: another loss would divide by them and not
    use them. Take one of these, or remove the weights."""
    for place, dataset in sources(run):
        if dataset.weighs_tokens and not run.loss.takes_weights:
            paths = tuple((*place, name) for name in ("turn_weights", "train_on"))
            message = (
                f"loss '{run.loss.name}' does not know that some tokens weigh more than others"
            )
            yield Finding(
                message, (*paths, LOSS), help="set loss: cross_entropy, or remove the weights"
            )


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


@rule("further-tokens-have-layers")
def further_tokens_have_layers(run: Recipe) -> Iterator[Finding]:
    """Tokens behind the next one are predicted by layers of their own, model.num_mtp_layers of deepseek_v3, and learned by the loss
    multi_token_cross_entropy: write both, or neither."""
    if run.loss.further_scale is not None and not run.model.further_tokens():
        message = f"{run.loss.name} is about tokens that model '{run.model.name}' has no layers for"
        yield Finding(
            message,
            (LOSS, ("model", "name"), DEPTH),
            help="set model.num_mtp_layers: 1 of deepseek_v3, or loss: cross_entropy",
        )


@rule("further-tokens-are-learned")
def further_tokens_are_learned(run: Recipe) -> Iterator[Finding]:
    """Layers of model.num_mtp_layers are trained by the loss multi_token_cross_entropy alone, in pretraining and fine-tuning. Where nothing
    trains them leave them out: weights that have them are read without them."""
    depth = run.model.further_tokens()
    if depth and run.loss.further_scale is None and run.kind != "eval":
        is_policy = run.kind == "rl"
        learned = "a run of kind rl" if is_policy else f"loss '{run.loss.name}'"
        message = f"{learned} trains nothing that predicts further tokens, and model.num_mtp_layers is {depth}"
        yield Finding(
            message, (DEPTH, LOSS), help=f"set {'' if is_policy else LEARNED_BY}num_mtp_layers: 0"
        )


@rule("further-tokens-need-whole-models")
def further_tokens_need_whole_models(run: Recipe) -> Iterator[Finding]:
    """Layers for further tokens use the embedding and the output head, which are at the two ends of a pipeline: pipeline parallelism must
    be 1."""
    if run.model.further_tokens() and run.parallelism.pipeline_parallel_degree > 1:
        message = "layers of model.num_mtp_layers use embedding and head, which a pipeline keeps at its two ends"
        paths = (("parallelism", "pipeline_parallel_degree"), DEPTH)
        yield Finding(message, paths, help="set pipeline_parallel_degree: 1, or num_mtp_layers: 0")
