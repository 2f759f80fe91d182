"""Rules about compared replies and the losses that compare them."""

from collections.abc import Iterator

from titanrun.components.losses.preference_config import KtoConfig
from titanrun.config.suggest import format_word_list
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.attention import FLAVOR, MASK, find_attention_config
from titanrun.recipe.rules.chat import list_pretrain_settings
from titanrun.recipe.rules.data import get_section_datasets
from titanrun.recipe.rules.optimizer import LARGEST_LR
from titanrun.recipe.rules.registry import RuleViolation, rule

DATASETS = {"pairs": "preference", "labels": "labelled"}
LOSSES = {"pairs": "dpo, ipo, cpo, simpo, orpo or reward", "labels": "kto"}
NOUNS = {"pairs": "pairs of replies", "labels": "labelled replies"}
MAX_USUAL_LR = 1e-4
USUAL_LR = "1.0e-6"
USUAL_LR_OF_NEW_HEADS = "1.0e-5"


@rule("replies-go-with-their-loss")
def replies_go_with_their_loss(run: Recipe) -> Iterator[RuleViolation]:
    """Require compared replies and a loss that compares them to be used together.

    Losses of pairs need the dataset preference, kto needs the dataset labelled. Any other loss
    would also train on the replies to avoid.
    """
    for section, dataset in get_section_datasets(run):
        has, needs = dataset.compares, run.loss.compares
        if has == needs:
            continue
        paths = (("loss",), (section, "dataset"))
        if needs is not None:
            message = (
                f"loss '{run.loss.name}' needs {NOUNS[needs]}, which dataset '{dataset.name}' "
                "does not have"
            )
            settings = [f"{section}.dataset: {{name: {DATASETS[needs]}, path: ...}}"]
            if run.kind == "sft" and section == "training":
                settings += list_pretrain_settings(run)
            hint = f"set {format_word_list(settings, conjunction='and')}"
        else:
            assert has is not None
            message = (
                f"loss '{run.loss.name}' would also train on the replies to avoid: dataset "
                f"'{dataset.name}' has {NOUNS[has]}"
            )
            hint = f"set loss: {LOSSES[has]}"
        yield RuleViolation(message, paths, hint=hint)


@rule("pairs-need-document-mask")
def pairs_need_document_mask(run: Recipe) -> Iterator[RuleViolation]:
    """Require a document mask for preference pairs.

    The two conversations of a pair share a sequence and must not attend to each other:
    model.attention.mask must be block_causal, and its documents positions.
    """
    attention = find_attention_config(run)
    for section, dataset in get_section_datasets(run):
        fits = (
            attention is not None
            and attention.mask == "block_causal"
            and attention.documents == "positions"
        )
        if dataset.compares == "pairs" and not fits:
            hint = (
                "set model.attention.mask: block_causal"
                if attention
                else "use a family with attention masks, such as llama3"
            )
            message = "the two conversations of a pair would attend to each other"
            yield RuleViolation(message, ((section, "dataset"), MASK, FLAVOR), hint=hint)


@rule("replies-stay-whole")
def replies_stay_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Require whole sequences and whole models for losses that compare replies.

    Such a loss sums over whole replies on a rank that has all layers: context and pipeline
    parallelism must be 1.
    """
    for name in ("context_parallel_degree", "pipeline_parallel_degree"):
        if run.loss.compares is not None and getattr(run.parallelism, name) > 1:
            message = (
                f"loss '{run.loss.name}' does not support {name} "
                f"{getattr(run.parallelism, name)}: it needs whole sequences and models"
            )
            yield RuleViolation(
                message,
                (("parallelism", name), ("loss",)),
                hint=f"set {name}: 1, and tensor_parallel_degree for large models",
            )


@rule("reference-is-the-start")
def reference_is_the_start(run: Recipe) -> Iterator[RuleViolation]:
    """Require initial_load_model_only with adapters and a loss that has a reference.

    The reference of dpo, ipo and kto is the model that the run starts from. Adapters that are
    loaded with the weights would not be part of it.
    """
    section = run.checkpoint
    if (
        run.loss.needs_reference
        and find_lora_converter(run) is not None
        and not section.initial_load_model_only
    ):
        paths = (("checkpoint", "initial_load_model_only"), ("loss",))
        yield RuleViolation(
            "the reference would lack the loaded adapters",
            paths,
            hint="set checkpoint.initial_load_model_only: true",
        )


@rule("estimate-needs-other-replies")
def estimate_needs_other_replies(run: Recipe) -> Iterator[RuleViolation]:
    """Require several replies a step for kto.

    It estimates how far the model is from its reference on each prompt with the reply to another
    one. Raise the batch size, or use variant apo_zero, which estimates nothing.
    """
    loss, size = run.loss, run.training.global_batch_size
    if isinstance(loss, KtoConfig) and loss.variant == "kto" and size == 1:
        yield RuleViolation(
            "loss 'kto' needs more than 1 reply a step: each prompt gets the reply to another one",
            (("training", "global_batch_size"), ("training", "local_batch_size"), ("loss",)),
            hint="set training.global_batch_size: 16",
        )


@rule("preferences-need-small-steps")
def preferences_need_small_steps(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about a high learning rate for losses that compare replies.

    They change a trained model a little. All weights usually take 1e-6, adapters and reward models,
    whose head is new, ten times that. At the learning rate of pretraining the model forgets what it
    knew.
    """
    starts_trained = run.checkpoint.initial_load_path or run.checkpoint.initial_load_in_hf
    rate = getattr(run.optimizer, "lr", 0.0)
    if (
        run.loss.compares is not None
        and starts_trained
        and find_lora_converter(run) is None
        and MAX_USUAL_LR < rate < LARGEST_LR
    ):
        usual = USUAL_LR if run.loss.head == "lm" else USUAL_LR_OF_NEW_HEADS
        yield RuleViolation(
            f"optimizer.lr {rate:g} is high for loss '{run.loss.name}' on all weights",
            (("optimizer", "lr"), ("loss",)),
            hint=f"set optimizer.lr: {usual}",
            code="conflict",
            severity="warning",
        )
