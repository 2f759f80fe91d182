"""Rules about pairs of replies, and the loss that compares them."""

from collections.abc import Iterator

from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.attention import FLAVOR, MASK, attention_of
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import datasets


@rule("pairs-go-with-dpo")
def pairs_go_with_dpo(run: Recipe) -> Iterator[Finding]:
    """The loss dpo compares two replies, which only the dataset preference has; any other loss would learn both of them."""
    for section, dataset in datasets(run):
        has_pairs = isinstance(dataset, PreferenceDatasetConfig)
        paths = (("loss",), (section, "dataset"))
        if run.loss.needs_reference and not has_pairs:
            message = f"loss '{run.loss.name}' compares pairs of replies, and dataset '{dataset.name}' has none"
            yield Finding(
                message, paths, help=f"set {section}.dataset: {{name: preference, path: ...}}"
            )
        elif has_pairs and not run.loss.needs_reference:
            message = f"loss '{run.loss.name}' would learn the replies that are not preferred too"
            yield Finding(message, paths, help="set loss: dpo")


@rule("pairs-need-document-mask")
def pairs_need_document_mask(run: Recipe) -> Iterator[Finding]:
    """The two conversations of a pair share a row and must not see each other: model.attention.mask must be block_causal, and its
    documents positions."""
    attention = attention_of(run)
    for section, dataset in datasets(run):
        fits = (
            attention is not None
            and attention.mask == "block_causal"
            and attention.documents == "positions"
        )
        if isinstance(dataset, PreferenceDatasetConfig) and not fits:
            help = (
                "set model.attention.mask: block_causal"
                if attention
                else "take a family with attention masks, as llama3"
            )
            message = "the two conversations of a pair would see each other"
            yield Finding(message, ((section, "dataset"), MASK, FLAVOR), help=help)


@rule("dpo-keeps-rows-whole")
def dpo_keeps_rows_whole(run: Recipe) -> Iterator[Finding]:
    """The loss dpo adds up over whole replies on a rank that has all layers: context and pipeline parallelism must be 1."""
    for name in ("context_parallel_degree", "pipeline_parallel_degree"):
        if run.loss.needs_reference and getattr(run.parallelism, name) > 1:
            message = f"loss '{run.loss.name}' needs whole rows and whole models, and {name} is {getattr(run.parallelism, name)}"
            yield Finding(
                message,
                (("parallelism", name), ("loss",)),
                help=f"set {name}: 1, and tensor_parallel_degree for large models",
            )


@rule("reference-is-the-start")
def reference_is_the_start(run: Recipe) -> Iterator[Finding]:
    """The reference of dpo is what the run starts from. Adapters that are loaded with the weights would be no part of it."""
    section = run.checkpoint
    if (
        run.loss.needs_reference
        and lora_of(run) is not None
        and not section.initial_load_model_only
    ):
        paths = (("checkpoint", "initial_load_model_only"), ("loss",))
        yield Finding(
            "the reference would lack the adapters that are loaded",
            paths,
            help="set checkpoint.initial_load_model_only: true",
        )
