"""Rules about attention and document boundaries."""

from collections.abc import Iterator

from titanrun.components.data.config import DatasetConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import load_special_token_ids
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.tree import format_path
from titanrun.models.shared.config import AttentionConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_datasets_with_paths
from titanrun.recipe.rules.registry import RuleViolation, rule

BACKEND: DataPath = ("model", "attention", "backend")
MASK: DataPath = ("model", "attention", "mask")
DOCUMENTS: DataPath = ("model", "attention", "documents")
FLAVOR: DataPath = ("model", "flavor")


@rule("one-source-of-documents")
def documents_have_one_source(run: Recipe) -> Iterator[RuleViolation]:
    """Require a single source of document boundaries for mask block_causal.

    Attention with this mask does not cross documents, so that their boundaries must be known, in
    training and validation: from positions if the dataset restarts them for each document, else
    from end-of-text tokens.
    """
    attention = find_attention_config(run)
    if attention is None or attention.mask != "block_causal":
        return
    if attention.documents is None:
        yield RuleViolation(
            "block_causal needs model.attention.documents",
            (DOCUMENTS, MASK, FLAVOR),
            hint="use documents: auto",
        )
    for place, dataset in get_datasets_with_paths(run) if attention.documents is not None else ():
        if dataset.restarts_positions and attention.documents == "eos":
            message = (
                f"dataset '{dataset.name}' marks documents by positions, but the recipe "
                "uses end-of-text tokens"
            )
            yield RuleViolation(message, (DOCUMENTS, place), hint="use documents: positions")
        if not dataset.restarts_positions and attention.documents == "positions":
            message = f"dataset '{dataset.name}' does not restart positions for each document"
            yield RuleViolation(
                message, (DOCUMENTS, place), hint=get_document_source(run, place, dataset)
            )


def get_document_source(run: Recipe, place: DataPath, dataset: DatasetConfig) -> str:
    """Return a hint about the source of document boundaries for a dataset.

    The dataset does not restart positions for each document. If other datasets do, this one must
    do so too.
    """
    if not any(other.restarts_positions for _, other in get_datasets_with_paths(run)):
        return "use documents: eos"
    if hasattr(dataset, "packing"):
        return f"set {format_path((*place, 'packing'))}: documents"
    return "use a dataset that restarts positions for each document"


@rule("ends-need-tokenizer")
def ends_need_tokenizer(run: Recipe) -> Iterator[RuleViolation]:
    """Require a tokenizer for model.attention.documents: eos.

    A document ends with the tokenizer's end-of-text token. Use the tokenizer that the data was
    tokenized with.
    """
    attention = find_attention_config(run)
    if (
        attention is not None
        and attention.documents == "eos"
        and run.tokenizer is None
        and attention.mask == "block_causal"
    ):
        paths = (MASK, DOCUMENTS, FLAVOR, ("tokenizer",))
        message = (
            "documents: eos needs the end-of-text token of a tokenizer, but tokenizer is not set"
        )
        yield RuleViolation(
            message,
            paths,
            hint="set tokenizer: {name: huggingface, path: ...}, or model.attention.mask: causal",
        )


@rule("tokenizer-has-end", level="environment")
def tokenizer_has_end(run: Recipe) -> Iterator[RuleViolation]:
    """Require an end-of-text token for model.attention.documents: eos.

    The tokenizer must have one: eos_token in its tokenizer_config.json.
    """
    attention = find_attention_config(run)
    if (
        attention is None
        or attention.documents != "eos"
        or not isinstance(run.tokenizer, TokenizerConfig)
    ):
        return
    try:
        has_end = "eos_token" in load_special_token_ids(run.tokenizer.folder)
    except ProblemsFound:
        return  # paths-exist and tokenizer-fits-vocabulary report this
    if not has_end:
        message = "documents: eos needs an end-of-text token, but the tokenizer has none"
        hint = "set eos_token in tokenizer_config.json, or set model.attention.mask: causal"
        yield RuleViolation(
            message,
            (("tokenizer", "path"), ("model", "hf_assets_path"), DOCUMENTS, FLAVOR),
            hint=hint,
            code="data",
        )


@rule("documents-need-mask")
def documents_need_mask(run: Recipe) -> Iterator[RuleViolation]:
    """Require mask block_causal for model.attention.documents.

    Only this mask uses document boundaries. Use it, or remove model.attention.documents.
    """
    attention = find_attention_config(run)
    if attention is not None and attention.mask == "causal" and attention.documents is not None:
        message = "documents has no effect: model.attention.mask is causal"
        paths = (DOCUMENTS, MASK, FLAVOR)
        yield RuleViolation(
            message,
            paths,
            hint="set mask: block_causal, or remove it",
            code="no-effect",
            severity="warning",
            applies_only_if_written=True,
        )


def find_attention_config(run: Recipe) -> AttentionConfig | None:
    """Return the attention config of the model, None for a family without one."""
    attention = getattr(run.model, "attention", None)
    return attention if isinstance(attention, AttentionConfig) else None


def find_attention_backend(run: Recipe) -> str | None:
    """Return the attention back end, None for a family without one."""
    attention = find_attention_config(run)
    return None if attention is None else str(attention.backend)
