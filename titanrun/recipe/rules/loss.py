"""Rules about the loss."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule

LOSS = ("loss", "name")
MTP_LOSS_HINT = "loss: multi_token_cross_entropy, or "
DEPTH = ("model", "num_mtp_layers")


@rule("loss-takes-weights")
def loss_takes_weights(run: Recipe) -> Iterator[RuleViolation]:
    """Require a loss that supports token weights if the data has them.

    Weights of roles and of messages count in cross_entropy, chunked_cross_entropy and mse: another
    loss would divide by them without using them. Use one of these, or remove the weights.
    """
    for place, dataset in get_all_datasets(run):
        if dataset.has_token_weights and not run.loss.supports_token_weights:
            paths = tuple((*place, name) for name in ("turn_weights", "train_on"))
            message = f"loss '{run.loss.name}' does not support token weights"
            yield RuleViolation(
                message, (*paths, LOSS), hint="set loss: cross_entropy, or remove the weights"
            )


@rule("chunks-need-the-head")
def chunks_need_the_head(run: Recipe) -> Iterator[RuleViolation]:
    """Require cross_entropy for pipelines and for logit soft caps.

    A chunked loss is computed inside the output head. A pipeline schedule needs whole logits from
    its last stage, and a soft cap changes logits after the head.
    """
    if run.loss.num_loss_chunks is None:
        return
    hint = "use loss: cross_entropy"
    if run.parallelism.pipeline_parallel_degree > 1:
        message = (
            f"{run.loss.name} is incompatible with pipeline parallelism: it computes the "
            "loss inside the output head"
        )
        yield RuleViolation(message, (LOSS, ("parallelism", "pipeline_parallel_degree")), hint=hint)
    if getattr(run.model, "logit_soft_cap", None) is not None:
        message = (
            f"{run.loss.name} is incompatible with model.logit_soft_cap: it computes the "
            "loss inside the output head, before the cap"
        )
        yield RuleViolation(message, (LOSS, ("model", "logit_soft_cap")), hint=hint)


@rule("further-tokens-have-layers")
def mtp_loss_has_layers(run: Recipe) -> Iterator[RuleViolation]:
    """Require model.num_mtp_layers for the loss multi_token_cross_entropy.

    Tokens after the next one are predicted by separate layers, model.num_mtp_layers of deepseek_v3,
    and trained by this loss. Set both, or neither.
    """
    if run.loss.mtp_loss_weight is not None and not run.model.mtp_depth():
        message = (
            f"{run.loss.name} needs layers for multi-token prediction, but model "
            f"'{run.model.name}' has none"
        )
        yield RuleViolation(
            message,
            (LOSS, ("model", "name"), DEPTH),
            hint="set model.num_mtp_layers: 1 (deepseek_v3), or loss: cross_entropy",
        )


@rule("further-tokens-are-learned")
def mtp_layers_have_loss(run: Recipe) -> Iterator[RuleViolation]:
    """Require the loss multi_token_cross_entropy for model.num_mtp_layers.

    These layers are trained by this loss alone, in pretraining and fine-tuning. If nothing trains
    them, remove them: checkpoints that have their weights are loaded without them.
    """
    depth = run.model.mtp_depth()
    if depth and run.loss.mtp_loss_weight is None and run.kind != "eval":
        is_policy = run.kind == "rl"
        trainer = "kind rl" if is_policy else f"loss '{run.loss.name}'"
        message = (
            f"{trainer} does not train multi-token prediction, but model.num_mtp_layers is {depth}"
        )
        yield RuleViolation(
            message,
            (DEPTH, LOSS),
            hint=f"set {'' if is_policy else MTP_LOSS_HINT}num_mtp_layers: 0",
        )


@rule("further-tokens-need-whole-models")
def mtp_needs_whole_models(run: Recipe) -> Iterator[RuleViolation]:
    """Require pipeline_parallel_degree 1 for model.num_mtp_layers.

    Layers for multi-token prediction use the embedding and the output head, which are at the two
    ends of a pipeline.
    """
    if run.model.mtp_depth() and run.parallelism.pipeline_parallel_degree > 1:
        message = (
            "model.num_mtp_layers is incompatible with pipeline parallelism: its layers "
            "use both embedding and head"
        )
        paths = (("parallelism", "pipeline_parallel_degree"), DEPTH)
        yield RuleViolation(
            message, paths, hint="set pipeline_parallel_degree: 1, or num_mtp_layers: 0"
        )
