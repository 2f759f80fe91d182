"""Rules about attention: what documents are told apart by."""

from collections.abc import Iterator

from titanrun.components.data.config import DatasetConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.vocabulary import special_token_ids
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.tree import path_text
from titanrun.models.shared.config import AttentionConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import placed_datasets

BACKEND: DataPath = ("model", "attention", "backend")
MASK: DataPath = ("model", "attention", "mask")
DOCUMENTS: DataPath = ("model", "attention", "documents")
FLAVOR: DataPath = ("model", "flavor")


@rule("one-source-of-documents")
def one_source_of_documents(run: Recipe) -> Iterator[Finding]:
    """Attention of mask block_causal does not cross documents, so one thing must tell where they begin, in training and validation:
    positions where the dataset starts them anew for each document, end-of-text tokens where it does not."""
    attention = attention_of(run)
    if attention is None or attention.mask != "block_causal":
        return
    if attention.documents is None:
        yield Finding(
            "block_causal needs to know where documents begin",
            (DOCUMENTS, MASK, FLAVOR),
            help="use documents: auto",
        )
    for place, dataset in placed_datasets(run) if attention.documents is not None else ():
        if dataset.restarts_positions and attention.documents == "eos":
            message = f"dataset '{dataset.name}' tells documents by positions, and the recipe by end-of-text tokens"
            yield Finding(message, (DOCUMENTS, place), help="use documents: positions")
        if not dataset.restarts_positions and attention.documents == "positions":
            message = f"the positions of dataset '{dataset.name}' do not tell where documents begin"
            yield Finding(message, (DOCUMENTS, place), help=told_by(run, place, dataset))


def told_by(run: Recipe, place: DataPath, dataset: DatasetConfig) -> str:
    """What tells where the documents of a dataset begin that does not start positions anew; others may, and then one way is left."""
    if not any(other.restarts_positions for _, other in placed_datasets(run)):
        return "use documents: eos"
    if hasattr(dataset, "packing"):
        return f"set {path_text((*place, 'packing'))}: documents"
    return "take one that starts positions anew for each document"


@rule("ends-need-tokenizer")
def ends_need_tokenizer(run: Recipe) -> Iterator[Finding]:
    """With model.attention.documents eos a document ends with the tokenizer's end-of-text token: name the tokenizer that the data was
    made with."""
    attention = attention_of(run)
    if (
        attention is not None
        and attention.documents == "eos"
        and run.tokenizer is None
        and attention.mask == "block_causal"
    ):
        paths = (MASK, DOCUMENTS, FLAVOR, ("tokenizer",))
        message = "block_causal tells documents by end-of-text tokens, and there is no tokenizer to know them"
        yield Finding(
            message,
            paths,
            help="set tokenizer: {name: huggingface, path: ...}, or model.attention.mask: causal",
        )


@rule("tokenizer-has-end", level="environment")
def tokenizer_has_end(run: Recipe) -> Iterator[Finding]:
    """With model.attention.documents eos the tokenizer must have an end-of-text token: eos_token in its tokenizer_config.json."""
    attention = attention_of(run)
    if (
        attention is None
        or attention.documents != "eos"
        or not isinstance(run.tokenizer, TokenizerConfig)
    ):
        return
    try:
        has_end = "eos_token" in special_token_ids(run.tokenizer.folder)
    except ProblemsFound:
        return  # paths-exist and tokenizer-fits-vocabulary say so
    if not has_end:
        message = "documents end with an end-of-text token, and the tokenizer has none"
        help = "name its eos_token in tokenizer_config.json, or set model.attention.mask: causal"
        yield Finding(
            message,
            (("tokenizer", "path"), ("model", "hf_assets_path"), DOCUMENTS, FLAVOR),
            help=help,
            code="data",
        )


@rule("documents-need-mask")
def documents_need_mask(run: Recipe) -> Iterator[Finding]:
    """Where a document begins matters to the mask block_causal only. Use it, or remove model.attention.documents."""
    attention = attention_of(run)
    if attention is not None and attention.mask == "causal" and attention.documents is not None:
        message = "documents has no effect: model.attention.mask is causal"
        paths = (DOCUMENTS, MASK, FLAVOR)
        yield Finding(
            message,
            paths,
            help="set mask: block_causal, or remove it",
            code="no-effect",
            severity="warning",
            if_written=True,
        )


def attention_of(run: Recipe) -> AttentionConfig | None:
    """The model's attention; None for a family without a choice."""
    attention = getattr(run.model, "attention", None)
    return attention if isinstance(attention, AttentionConfig) else None


def attention_backend(run: Recipe) -> str | None:
    """The attention back end; None for a family without one."""
    attention = attention_of(run)
    return None if attention is None else str(attention.backend)
