"""Rules about preference data and the loss that compares pairs of replies."""

from collections.abc import Iterator

from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.attention import FLAVOR, MASK, find_attention_config
from titanrun.recipe.rules.data import get_section_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule


@rule("pairs-go-with-dpo")
def pairs_go_with_dpo(run: Recipe) -> Iterator[RuleViolation]:
    """Require preference data and loss dpo to be used together.

    The loss dpo compares two replies, which only the dataset preference has; any other loss would
    train on both of them.
    """
    for section, dataset in get_section_datasets(run):
        has_pairs = isinstance(dataset, PreferenceDatasetConfig)
        paths = (("loss",), (section, "dataset"))
        if run.loss.needs_reference and not has_pairs:
            message = (
                f"loss '{run.loss.name}' needs preference data, but dataset "
                f"'{dataset.name}' has no pairs"
            )
            yield RuleViolation(
                message, paths, hint=f"set {section}.dataset: {{name: preference, path: ...}}"
            )
        elif has_pairs and not run.loss.needs_reference:
            message = (
                f"loss '{run.loss.name}' would also train on rejected replies: preference "
                "data needs loss 'dpo'"
            )
            yield RuleViolation(message, paths, hint="set loss: dpo")


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
        if isinstance(dataset, PreferenceDatasetConfig) and not fits:
            hint = (
                "set model.attention.mask: block_causal"
                if attention
                else "use a family with attention masks, such as llama3"
            )
            message = "the two conversations of a pair would attend to each other"
            yield RuleViolation(message, ((section, "dataset"), MASK, FLAVOR), hint=hint)


@rule("dpo-keeps-rows-whole")
def dpo_keeps_sequences_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Require whole sequences and whole models for loss dpo.

    The loss sums over whole replies on a rank that has all layers: context and pipeline parallelism
    must be 1.
    """
    for name in ("context_parallel_degree", "pipeline_parallel_degree"):
        if run.loss.needs_reference and getattr(run.parallelism, name) > 1:
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
    """Require initial_load_model_only with loss dpo and adapters.

    The reference of dpo is the model that the run starts from. Adapters that are loaded with the
    weights would not be part of it.
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
